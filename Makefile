# Tessera: one non-recursive Makefile. `make help` lists the targets.
#
# Everything that is built lands in $(BUILD); a second configuration gets a folder of its own
# (make CC=clang BUILD=build-clang). Objects are rebuilt when the compiler or its flags change.

ifeq ($(origin CC),default)
CC      := gcc
endif
BUILD   ?= build
ROOMS   ?= base ir grad nn models exec cpu data token ckpt train watch comm mesh xla
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-missing-field-initializers
OPT     ?= -O2 -g
WERROR  ?=
SAN     ?=
PREFIX  ?= /usr/local
DESTDIR ?=
JOBS    ?= $(shell nproc)
TEST_TIMEOUT ?= 300
FUZZ_SECONDS ?= 60

PKGS     := jansson yaml-0.1 libxxhash zlib libzstd libutf8proc minizip
PKG_CF   := $(shell pkg-config --cflags $(PKGS))
PKG_LIBS := $(shell pkg-config --libs $(PKGS))
CFLAGS  += -std=c11 -D_GNU_SOURCE $(WARN) $(WERROR) $(OPT) $(SAN) -fopenmp -fPIC -MMD -MP \
           $(MODEL_LINES) -Iinclude -Isrc -I$(BUILD) $(PKG_CF)
LDLIBS  := $(PKG_LIBS) -ldnnl -lm -lpthread -ldl
LDFLAGS += -fopenmp $(SAN)

LIB_SRC  := $(sort $(foreach r,$(ROOMS),$(wildcard src/$(r)/*.c src/$(r)/*/*.c)))
CLI_SRC  := $(sort $(wildcard src/cli/*.c))
TEST_SRC := $(sort $(wildcard tests/op/test_*.c $(foreach d,unit grad golden e2e crash,tests/$(d)/*.c)))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
SH_TESTS := $(sort $(wildcard tests/e2e/*.sh tests/crash/*.sh))
PEERS    := $(sort $(wildcard tests/peers/*.sh))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
TESTS    := $(TEST_SRC:%.c=$(BUILD)/%)
FUZZERS  := $(FUZZ_SRC:%.c=$(BUILD)/%)
FAKE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/fake/*.c)))
FAKES    := $(patsubst %,$(BUILD)/tests/fake/lib%.so,fake_pjrt no_api needs_gone)
SLOWFS   := $(BUILD)/tests/fuse/slowfs
CONFIGS  := $(sort $(wildcard configs/*.yml configs/*/*.yml))

all: $(BUILD)/tessera
lib: $(BUILD)/libtessera.a
tests: $(TESTS) $(FUZZERS) $(FAKES) $(SLOWFS)

# ---- what is built -----------------------------------------------------------------------------

$(BUILD)/libtessera.a: $(LIB_OBJ)
	@rm -f $@ && ar rcs $@ $^
$(BUILD)/tessera: $(CLI_OBJ) $(BUILD)/libtessera.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ISA) -c -o $@ $<
$(TESTS): $(BUILD)/%: %.c $(BUILD)/libtessera.a $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MF $@.d -Itests $(LDFLAGS) -o $@ $< $(filter %.o,$^) $(BUILD)/libtessera.a $(LDLIBS) -lcmocka

# The op table, its interpreter and harness serve several tests.
OP_HARNESS := $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/op/test_%,$(wildcard tests/op/*.c)))
$(filter $(BUILD)/tests/op/% $(BUILD)/tests/grad/%,$(TESTS)): $(OP_HARNESS)
# The crash tests share a small run, a recorder and a disk that loses power.
CRASH_HARNESS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/crash/harness/*.c))
$(filter $(BUILD)/tests/crash/%,$(TESTS)): $(CRASH_HARNESS)

# A fuzz target links with a plain main that replays files, or with clang's libFuzzer (make fuzz).
FUZZ_MAIN ?= $(BUILD)/tests/fuzz/driver.o
$(FUZZERS): %: %.o $(filter %.o,$(FUZZ_MAIN)) $(BUILD)/libtessera.a
	$(CC) $(LDFLAGS) -o $@ $< $(FUZZ_MAIN) $(BUILD)/libtessera.a $(LDLIBS)
$(BUILD)/tests/%.o: ISA := -Itests -Wno-missing-prototypes

# PJRT plugins for the tests: one that runs on the CPU engine and fails to order; no plugin; one that lacks a library.
$(BUILD)/tests/fake/libfake_pjrt.so: $(FAKE_OBJ) $(BUILD)/libtessera.a tests/fake/exports.map
	$(CC) -shared $(LDFLAGS) -Wl,-Bsymbolic,--version-script=tests/fake/exports.map -o $@ $(FAKE_OBJ) \
		$(BUILD)/libtessera.a $(LDLIBS)
$(BUILD)/tests/fake/libno_api.so: $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) -shared -o $@ -x c /dev/null
$(BUILD)/tests/fake/libneeds_gone.so: $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) -shared -o $(@D)/libgone.so -Wl,-soname,libgone.so -x c /dev/null
	$(CC) -shared -o $@ -x c /dev/null -x none -Wl,--no-as-needed $(@D)/libgone.so
	@rm $(@D)/libgone.so
$(foreach t,$(TESTS),$(if $(findstring xla,$(t)),$(t))): | $(FAKES)

# A slow file system, and one with an object store's limits.
$(SLOWFS): $(wildcard tests/fuse/*.[ch])
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(WARN) $(WERROR) -O1 -g -Itests -o $@ $(filter %.c,$^) -lpthread

# The demo's text comes out of an R data file.
$(BUILD)/tools/rdb_text: tools/rdb_text.c
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARN) $(WERROR) -O2 -o $@ $< -lz

# Kernels of one instruction set live in files named for it; nothing else is built with these flags.
AVX2   := -mavx2 -mfma -mf16c
AVX512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512
AVX512BF16 := $(AVX512) -mavx512bf16
# Only model code records its lines in the graph (tessera.h).
MODEL_LINES := -DTS_NO_LINES
$(BUILD)/src/models/%.o: MODEL_LINES :=

$(BUILD)/src/cpu/%_avx2.o: ISA := $(AVX2)
$(BUILD)/src/cpu/%_avx512.o: ISA := $(AVX512)
$(BUILD)/src/cpu/%_avx512_bf16.o: ISA := $(AVX512BF16)

# Files that carry a configuration inside the program (.incbin) are rebuilt with it.
$(filter %embed.o %embedded.o,$(LIB_OBJ)): $(CONFIGS) $(BUILD)/configs.def
$(BUILD)/configs.def: FORCE
	@mkdir -p $(@D); i=0; for f in $(CONFIGS); do echo "EMBED($$i, \"$$f\")"; i=$$((i + 1)); done >$@.new; \
		if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# The compiler and its flags, as a file that changes only when they do.
FLAG_LINE := $(subst ','\'',$(CC) $(CFLAGS) $(LDFLAGS))
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(FLAG_LINE)' | cmp -s - $@ || printf '%s\n' '$(FLAG_LINE)' >$@

# ---- what is checked ---------------------------------------------------------------------------

RUN_TESTS := BUILD=$(BUILD) CC='$(CC)' tools/run_tests.sh -j $(JOBS)
REPLAYS   := $(FUZZERS:%=fuzz:%)

check: all tests
	@$(RUN_TESTS) -t $(TEST_TIMEOUT) $(TESTS) $(REPLAYS) $(SH_TESTS)

ASAN := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
asan:
	@$(MAKE) BUILD=$(BUILD)-asan OPT='-O1 -g' SAN='$(ASAN)' TEST_TIMEOUT=$(TEST_TIMEOUT) check-slow
check-slow: all tests
	@TESSERA_SLOW=1 $(RUN_TESTS) -t $$(($(TEST_TIMEOUT) * 4)) $(TESTS) $(REPLAYS) $(SH_TESTS)

# valgrind knows AVX2 and nothing above it.
VALGRIND := valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
            --suppressions=$(CURDIR)/tools/valgrind.supp
valgrind: all tests
	@TESSERA_SLOW=1 TESSERA_ISA=avx2 VALGRIND='$(VALGRIND)' $(RUN_TESTS) -t $$(($(TEST_TIMEOUT) * 8)) -w '$(VALGRIND)' \
		$(filter $(BUILD)/tests/unit/% $(BUILD)/tests/op/%,$(TESTS)) tools/valgrind_train.sh

FUZZ_SAN := -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all
fuzz:
	@command -v clang >/dev/null || { echo 'make fuzz needs clang: tools/setup.sh ci installs it' >&2; exit 1; }
	@$(MAKE) CC=clang BUILD=$(BUILD)-fuzz OPT='-O1 -g' SAN='$(FUZZ_SAN)' FUZZ_MAIN=-fsanitize=fuzzer fuzz-run
fuzz-run: $(FUZZERS)
	@tools/fuzz.sh $(FUZZ_SECONDS) $(JOBS) $(FUZZERS)

# The full forms of what `make check` runs a part of (docs/reliability.md).
CRASH_TESTS := $(filter $(BUILD)/tests/crash/%,$(TESTS))
crash: $(CRASH_TESTS)
	@tools/crash.sh $(CRASH_TESTS)

tidy:
	@tools/tidy.sh
bench: all
	@BUILD=$(BUILD) bench/train.sh
# Each kernel alone; $(BUILD)/bench/kernels [NAME PART] [THREADS].
$(BUILD)/bench/kernels: bench/kernels.c $(BUILD)/libtessera.a $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MF $@.d $(LDFLAGS) -o $@ $< $(BUILD)/libtessera.a $(LDLIBS)
bench-kernels: $(BUILD)/bench/kernels
	@$(BUILD)/bench/kernels
# What the CPU engine's timeline explains of a step.
bench-profile: all
	@BUILD=$(BUILD) bench/profile.sh
# An NVIDIA GPU through XLA: exit 4 and one sentence where there is none (bench/gpu.sh).
check-gpu: all tests
	@BUILD=$(BUILD) bench/gpu.sh check
bench-gpu: all
	@BUILD=$(BUILD) bench/gpu.sh bench
check-peers: all
	@BUILD=$(BUILD) tools/run_tests.sh -j 1 -t 1800 $(PEERS)

# ---- what is handed on -------------------------------------------------------------------------

install: all
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig'
	install -m 755 $(BUILD)/tessera '$(DESTDIR)$(PREFIX)/bin/tessera'
	install -m 644 include/tessera.h '$(DESTDIR)$(PREFIX)/include/tessera.h'
	install -m 644 $(BUILD)/libtessera.a '$(DESTDIR)$(PREFIX)/lib/libtessera.a'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$(sed -n 's/^#define TS_VERSION  *"\(.*\)"/\1/p' include/tessera.h)|" \
		-e 's|@PKGS@|$(PKGS)|' tools/tessera.pc.in >'$(DESTDIR)$(PREFIX)/lib/pkgconfig/tessera.pc'

compile_commands.json: FORCE
	@sep='['; for f in $(LIB_SRC) $(CLI_SRC) $(TEST_SRC) $(FUZZ_SRC); do \
		case $$f in *_avx2.c) isa='$(AVX2)';; *_avx512.c) isa='$(AVX512)';; *_bf16.c) isa='$(AVX512BF16)';; *) isa='';; esac; \
		printf '%s\n{"directory": "%s", "file": "%s", "command": "%s"}' "$$sep" '$(CURDIR)' $$f \
			'$(CC) $(filter-out -MMD -MP,$(CFLAGS)) -Itests '"$$isa -c $$f"; \
		sep=','; done >$@.part; printf '\n]\n' >>$@.part; mv $@.part $@

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-fuzz
# What ./check makes too: its builds, and the plugin that it downloaded.
distclean: clean
	rm -rf build-check build-check-asan build-clang build-plugins

help:
	@echo 'make                        build/tessera, the program, and build/libtessera.a'
	@echo 'make check                  every test, and the fuzz corpora replayed'
	@echo 'make asan                   the same under the address and undefined-behaviour sanitizers'
	@echo 'make valgrind               unit and op tests and a few training steps under valgrind (AVX2 paths)'
	@echo 'make fuzz                   libFuzzer on every target, FUZZ_SECONDS=60 each'
	@echo 'make crash                  power loss, kills, failing calls and damage of checkpoints, in full (5 minutes)'
	@echo 'make tidy                   style: room arrows, lengths, banned functions'
	@echo 'make bench                  speed beside PyTorch when BENCH_PYTHON names a python that has it'
	@echo 'make bench-kernels          each kernel alone, by instruction set'
	@echo 'make bench-profile          where the time of a training step goes, op by op'
	@echo 'make check-gpu              op table, golden outputs and 50 steps on an NVIDIA GPU (bench/gpu.sh)'
	@echo 'make bench-gpu              speed there beside PyTorch on the same GPU (BENCH_PYTHON)'
	@echo 'make check-peers            comparisons that need torch and transformers (BENCH_PYTHON)'
	@echo 'make install                program, library, header, .pc (PREFIX=/usr/local, DESTDIR=)'
	@echo 'make compile_commands.json  for editors and clang-tidy'
	@echo 'make clean                  what make, asan and fuzz built'
	@echo 'make distclean              also what ./check built, and the plugin it downloaded (build-plugins)'
	@echo
	@echo 'Variables: CC, BUILD=build, OPT="-O2 -g", WERROR=-Werror, SAN=, ROOMS=, JOBS, TEST_TIMEOUT'

FORCE:
.PHONY: all lib tests check check-slow asan valgrind fuzz fuzz-run crash tidy bench bench-kernels bench-profile \
        check-gpu bench-gpu check-peers install clean distclean help FORCE
-include $(OP_HARNESS:.o=.d) $(CRASH_HARNESS:.o=.d) $(FAKE_OBJ:.o=.d) $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TESTS:=.d) $(FUZZERS:=.d) $(BUILD)/tests/fuzz/driver.d
