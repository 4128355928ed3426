# Tessera: one non-recursive Makefile. `make help` lists the targets.
CC      ?= gcc
BUILD   ?= build
ROOMS   ?= base ir grad nn models exec cpu data token ckpt train watch comm mesh xla
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-missing-field-initializers
OPT     ?= -O2 -g
SAN     ?=
PKGS    := jansson yaml-0.1 libxxhash zlib libzstd libutf8proc
CFLAGS  += -std=c11 -D_GNU_SOURCE $(WARN) $(WERROR) $(OPT) $(SAN) -fopenmp -fPIC -MMD -MP \
           -Iinclude -Isrc -I$(BUILD) $(shell pkg-config --cflags $(PKGS))
LDLIBS  := $(shell pkg-config --libs $(PKGS)) -ldnnl -lm -lpthread -ldl
LDFLAGS += -fopenmp $(SAN)

LIB_SRC := $(sort $(foreach r,$(ROOMS),$(wildcard src/$(r)/*.c src/$(r)/*/*.c)))
CLI_SRC := $(sort $(wildcard src/cli/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(sort $(wildcard tests/unit/*.c tests/op/test_*.c tests/grad/*.c tests/golden/*.c tests/e2e/*.c tests/crash/*.c))
TESTS   := $(TEST_SRC:%.c=$(BUILD)/%)

all: $(BUILD)/tessera
lib: $(BUILD)/libtessera.a
tests: $(TESTS)

$(BUILD)/libtessera.a: $(LIB_OBJ)
	@rm -f $@ && ar rcs $@ $^
$(BUILD)/tessera: $(CLI_OBJ) $(BUILD)/libtessera.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ISA) -c -o $@ $<
$(TESTS): $(BUILD)/%: %.c $(BUILD)/libtessera.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itests $(LDFLAGS) -o $@ $< $(filter %.o,$^) $(BUILD)/libtessera.a $(LDLIBS) -lcmocka

# Kernels of one instruction set live in files named for it; nothing else is built with these flags.
$(BUILD)/src/cpu/%_avx2.o: ISA := -mavx2 -mfma -mf16c
$(BUILD)/src/cpu/%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mprefer-vector-width=512
$(BUILD)/src/cpu/%_avx512_bf16.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mprefer-vector-width=512

clean:
	rm -rf $(BUILD)

.PHONY: all lib tests clean
-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TESTS:=.d)
