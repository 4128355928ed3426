#!/bin/sh
# xla_faults.sh: training on a plugin that fails. The fake plugin (tests/fake) is a PJRT plugin with the CPU engine
# inside: without faults a run on it is the run on engine=cpu to the last digit; with them the program says which
# step failed and why, keeps what was saved, and goes on from there. Nothing that a plugin does ends it by a signal.
. "$(dirname "$0")/../cli_help.sh"

build=$(cd "$(dirname "$TESSERA")" && pwd)
fake=$build/tests/fake/libfake_pjrt.so
[ -e "$fake" ] || { echo "$fake is not built"; exit 1; }
export FAKE_PJRT_THREADS=1
# fault NAME=VALUE… -- RUN WORD…: a tiny run on the fake plugin with these faults; its code is in $got.
fault() {
    settings=
    while [ "$1" != -- ]; do
        settings="$settings $1"
        shift
    done
    run_word=run_name=$2
    shift 2
    # shellcheck disable=SC2086
    env $settings "$TESSERA" train base.yml $tiny "$run_word" engine=xla plugin="$fake" "$@" >"$out" 2>"$err" </dev/null
    got=$?
}
text="dataset_type=text dataset_path=$work/book.txt num_epoch=100 steps=8"
i=0
while [ $i -lt 150 ]; do
    echo "line $i: the quick brown fox jumps over the lazy dog $((i * 37 % 101)) times"
    i=$((i + 1))
done >"$work/book.txt"

# ---- no fault: the same bits as engine=cpu ---------------------------------------------------------
# One learning rate in both: the default schedule's length is the number of steps.
expect 0 train base.yml $tiny run_name=cpu engine=cpu $text
fault FAKE_PJRT_LOG="$work/calls" -- fake $text
code_is 0 $got 'training on the fake plugin' && says_like out '^engine xla: fake '
losses cpu >"$work/cpu.losses"
losses fake >"$work/fake.losses"
[ -s "$work/cpu.losses" ] || fail 'no losses to compare'
cmp -s "$work/cpu.losses" "$work/fake.losses" || fail 'other losses than on engine=cpu' "$(diff "$work/cpu.losses" "$work/fake.losses")"
cmp -s "$(shard_of cpu 8)" "$(shard_of fake 8)" || fail 'another last checkpoint than on engine=cpu'
# Nothing fell back to the CPU engine, and step N was awaited after N + 1 was given away.
[ "$(grep -c '^PJRT_LoadedExecutable_Execute$' "$work/calls")" = 8 ] || fail "not 8 executes: $(sort "$work/calls" | uniq -c)"
awk '/^PJRT_LoadedExecutable_Execute$/ { given++ } /^PJRT_Buffer_ToHostBuffer$/ { early = early || given == 1 }
     END { exit early }' "$work/calls" ||
    fail 'the first step was read before the second was given away'

# ---- a step that fails -----------------------------------------------------------------------------
says_failed() { # RUN STEP WORDS
    code_is 1 $got "a step that fails" && says err "tessera train: step $2: $3"
    [ "$(grep -vc -e ' has no effect: ' -e ': compiling the train step' "$err")" = 1 ] || fail 'more than one line about it' "$(show)"
    [ "$(steps_of "$1")" = "0 4" ] || fail "$1: checkpoints $(steps_of "$1") instead of 0 4"
    says_not out 'completed step: 7'
}
# goes_on RUN STEP: without the fault it continues from there and ends where the run without faults did.
goes_on() {
    fault -- "$1" $text checkpoint_period=4
    code_is 0 $got "$1 goes on" && says out 'completed step: 7'
    says out "continuing run $1 from $(run_folder "$1")/checkpoints/$2"
    cmp -s "$(shard_of fake 8)" "$(shard_of "$1" 8)" || fail "$1: another end than without the fault"
}
fault FAKE_PJRT_EVENT_FAIL=7 -- later $text checkpoint_period=4
says_failed later 6 'execute 7 of train_step failed: the device was lost in execute 7'
goes_on later 4
fault FAKE_PJRT_FAIL='PJRT_LoadedExecutable_Execute@7=8:no_room' -- refused $text checkpoint_period=4
says_failed refused 6 'execute 7 of train_step was refused: no_room'
goes_on refused 4
fault FAKE_PJRT_EVENT_FAIL=upload@30 -- upload $text checkpoint_period=4
code_is 1 $got 'an upload that fails' && says err 'an upload to the device: the device was lost in upload 30'
says_like err '^tessera train: step [0-9]+: '
# A checkpoint that cannot be fetched is none; the one before it is whole.
downloads=$(awk '/^PJRT_Buffer_ToHostBuffer$/' "$work/calls" | wc -l)
fault FAKE_PJRT_EVENT_FAIL=download@"$downloads" -- fetch $text
code_is 1 $got 'a checkpoint that cannot be fetched' && says err 'a download from the device: the device was lost in download'
[ "$(steps_of fetch)" = 0 ] || fail "fetch: checkpoints $(steps_of fetch) instead of 0"
goes_on fetch 0

# ---- a program that does not compile ---------------------------------------------------------------
fault FAKE_PJRT_FAIL='PJRT_Client_Compile=2:3:14:error:no_such_op' -- compile
code_is 1 $got 'a program that does not compile' && says err 'tessera train: compiling the graph train_step: 3:14:error:no_such_op'

# ---- a list with all kinds of them -------------------------------------------------------------------
mkdir -p "$work/plugins/cpu" "$work/plugins/cuda" "$work/plugins/tpu"
cp "$fake" "$work/plugins/cpu/pjrt_c_api_cpu_plugin.so"
cp "$build/tests/fake/libno_api.so" "$work/plugins/cuda/xla_cuda_plugin.so"
cp "$build/tests/fake/libneeds_gone.so" "$work/plugins/tpu/libtpu.so"
# listed USABLE WORDS NAME=VALUE…: three plugins, so many of them usable, these words about the others.
listed() {
    usable=$1 words=$2
    shift 2
    env -u VIRTUAL_ENV HOME="$work" XDG_DATA_HOME= TESSERA_PLUGIN_PATH="$work/plugins" "$@" "$TESSERA" plugins list --json >"$out" 2>"$err" </dev/null
    code_is 0 $? "plugins list with $*" && says out "$words"
    [ "$(grep -c '"name"' "$out")" = 3 ] || fail "plugins list with $*: not three" "$(show)"
    [ "$(grep -c '"usable": true' "$out")" = "$usable" ] || fail "plugins list with $*: not $usable usable" "$(show)"
}
listed 1 'xla_cuda_plugin.so has no function GetPjrtApi, so it is not a PJRT plugin'
listed 1 'libtpu.so needs the library libgone.so, which is not on this machine' FAKE_PJRT_API=0.117
listed 0 'was ended by SIGABRT: F0000 fake plugin: check failed in PJRT_Client_Create' FAKE_PJRT_ABORT=PJRT_Client_Create
listed 0 'exited with code 3' FAKE_PJRT_EXIT=PJRT_Plugin_Initialize

# ---- a step that was compiled before -----------------------------------------------------------------
# compile.sh has what a file may differ in; here the plugin is another, or refuses it.
export FAKE_PJRT_PLATFORM=cpu
kept="compiled_trainstep_file=$work/step"
expect 0 compile base.yml $tiny run_name=kept $text plugin="$fake" compile_topology=cpu:1 "$kept"
fault FAKE_PJRT_LOG="$work/calls.kept" -- kept $text "$kept"
code_is 0 $got 'a compiled step' && cmp -s "$(shard_of fake 8)" "$(shard_of kept 8)" || fail 'a compiled step does something else'
grep -q '^PJRT_Executable_DeserializeAndLoad$' "$work/calls.kept" || fail 'the compiled step was not loaded'
fault FAKE_PJRT_VERSION=2.0 -- other $text "$kept"
code_is 2 $got 'a step compiled by another version' && says err "$work/step was compiled for another plugin"
fault FAKE_PJRT_FAIL=PJRT_Executable_DeserializeAndLoad=13:stale -- other $text "$kept"
code_is 1 $got 'a compiled step that the plugin refuses' && says err "loading the compiled program $work/step: stale"
unset FAKE_PJRT_PLATFORM

# ---- a plugin that is none -------------------------------------------------------------------------
# no_plugin CODE WORDS NAME=VALUE…: one sentence, the code, nothing written.
no_plugin() {
    want=$1 words=$2
    shift 2
    fault "$@" -- none
    code_is "$want" $got "$*" && says err "$words"
    [ "$(grep -vc -e ' has no effect: ' -e ': compiling the train step' "$err")" = 1 ] || fail "$*: not one line" "$(show)"
    [ -e "$work/runs/none" ] && fail "$*: a run's folder came to be"
    says_not out 'engine'
}
no_plugin 4 "the plugin $fake speaks version 1.90 of the PJRT C API and Tessera speaks version 0; take another version of the plugin" \
    FAKE_PJRT_API=1.90
no_plugin 4 "the plugin $fake (PJRT 0.40) has no PJRT_Client_Compile, which Tessera needs; take a newer version of the plugin" \
    FAKE_PJRT_API=0.40 FAKE_PJRT_SIZE=200
no_plugin 4 "the plugin $fake gives no table of functions" FAKE_PJRT_API=none
no_plugin 4 "the plugin $fake: no device: the plugin opened, and has none to offer" FAKE_PJRT_DEVICES=0
no_plugin 4 "no device: the plugin cannot open its devices: none_found" FAKE_PJRT_FAIL=PJRT_Client_Create=5:none_found
no_plugin 4 'was ended by SIGABRT: F0000 fake plugin: check failed in PJRT_Client_Create' FAKE_PJRT_ABORT=PJRT_Client_Create
no_plugin 4 'exited with code 3: E0000 fake plugin: unknown flag, leaving from GetPjrtApi' FAKE_PJRT_EXIT=GetPjrtApi
no_plugin 5 'did not end within 1 s and was stopped' FAKE_PJRT_HANG=PJRT_Client_Create TESSERA_PLUGIN_TIMEOUT=1

# ---- stopped while a plugin is tried ---------------------------------------------------------------
# stopped SIGNAL CODE WORD…: the signal comes while the plugin opens its devices, and never reaches the plugin's process.
stopped() {
    signal=$1 want=$2
    shift 2
    rm -f "$work/calls.stopped"
    FAKE_PJRT_HANG=PJRT_Client_Create FAKE_PJRT_LOG=$work/calls.stopped sh -c 'echo $$ >"$0/pid"; exec "$@"' "$work" "$@" \
        >"$out" 2>"$err" </dev/null &
    job=$!
    wait_for 20 grep -q '^PJRT_Client_Create$' "$work/calls.stopped" || fail 'the plugin was not tried'
    kill -"$signal" "$(cat "$work/pid")"
    wait $job
    code_is "$want" $? "SIG$signal for $*"
    says_not err 'the plugin'
}
run="$TESSERA train base.yml $tiny run_name=none engine=xla plugin=$fake"
stopped INT 130 $run
says err 'stopped before the first step'
stopped TERM 75 $run
stopped TERM 143 env -u VIRTUAL_ENV HOME="$work" XDG_DATA_HOME= TESSERA_PLUGIN_PATH="$work/plugins" "$TESSERA" plugins list
[ ! -e "$work/runs/none" ] || fail 'a run that did not begin has a folder'

# ---- a plugin that is none, again --------------------------------------------------------------------
fake=$build/tests/fake/libno_api.so
no_plugin 4 "the library $fake has no function GetPjrtApi, so it is not a PJRT plugin"
fake=$build/tests/fake/libneeds_gone.so
no_plugin 4 "the plugin $fake needs the library libgone.so, which is not on this machine"
fake=$work/book.txt
no_plugin 4 "the plugin $fake cannot be loaded: $fake: invalid ELF header"
fake=$work/nowhere.so
fault -- none
code_is 2 $got 'a plugin that is not there' && says err "$fake does not exist"
finish
