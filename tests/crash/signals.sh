#!/bin/sh
# signals.sh: Ctrl-C saves and ends with 130, a second one ends at once; SIGTERM saves and ends with
# 75, SIGHUP with 129; SIGUSR1 saves and goes on; SIGKILL loses at most what came behind the last checkpoint. All of it
# while saves are being written, too. What cannot end in its grace: deadline.sh.
. "$(dirname "$0")/../cli_help.sh"

# Steps of some milliseconds, many of them: there is time to hit the run in its middle.
long="steps=1000000 learning_rate_schedule_steps=1000000 per_device_batch_size=16"

# begin RUN WORD…: starts a run in the background ($pid) and waits until it has done three steps. A shell
# without job control starts background commands with SIGINT ignored; env puts it back.
begin() {
    run=$1
    shift
    : >"$out"; : >"$err" # before the program does: what is waited for is its own
    env --default-signal=INT "$TESSERA" train base.yml $tiny $long run_name="$run" "$@" >"$out" 2>"$err" </dev/null &
    pid=$!
    wait_for 60 grep -q '^completed step: 3,' "$out" || fail "$run: no steps" "$(show)"
}
ended() { # CODE WHAT
    wait $pid
    code_is "$1" $? "$2"
}
last_step() { losses "$1" | tail -n 1 | cut -d' ' -f1; }
# The newest checkpoint holds every step that was done, and the run goes on from there.
continues() {
    done_steps=$(($(last_step "$1") + 1))
    newest=$(steps_of "$1" | awk '{ print $NF }')
    [ "$newest" = $done_steps ] ||
        fail "$1: the newest checkpoint is $newest after $done_steps steps"
    expect 0 train base.yml $tiny $long run_name="$1" steps=$((done_steps + 2))
    says out "checkpoints/$done_steps"
    says_like out "^completed step: $done_steps, "
    [ -z "$(ls "$(run_folder "$1")/checkpoints" | grep tmp)" ] ||
        fail "$1: a temporary folder is left"
}

if ! env --default-signal=INT true 2>/dev/null; then
    rm -rf "$work"
    echo "env(1) cannot put signals back (coreutils before 8.31)"
    exit 77
fi

begin interrupted
kill -INT $pid
ended 130 'one Ctrl-C'
says err 'stopping after this step; Ctrl-C again ends at once without saving'
says err 'the same command continues'
continues interrupted

begin terminated
kill -TERM $pid
ended 75 SIGTERM
says err 'SIGTERM: stopping after this step'
says err 'the same command continues'
continues terminated

begin hung
kill -HUP $pid
ended 129 SIGHUP
says err 'the same command continues'
continues hung

# Under nohup a closed terminal is no reason to stop.
: >"$out"; : >"$err"
env --ignore-signal=HUP "$TESSERA" train base.yml $tiny $long run_name=nohup >"$out" 2>"$err" </dev/null &
pid=$!
wait_for 60 grep -q '^completed step: 3,' "$out" || fail "nohup: no steps" "$(show)"
kill -HUP $pid
lines=$(wc -l <"$out")
wait_for 30 sh -c "[ \$(wc -l <'$out') -gt $((lines + 20)) ]" || fail 'SIGHUP stopped a run under nohup'
kill -TERM $pid
ended 75 'SIGTERM under nohup'

# Before the first step: while a book is read that takes a while.
awk 'BEGIN { for (i = 0; i < 400000; i++) print "line " i " of a long book" }' >"$work/book.txt"
awk 'BEGIN { for (i = 0; i < 400000; i++) print "{\"text\": \"line " i " of a long book\"}" }' >"$work/book.jsonl"
: >"$out"; : >"$err"
"$TESSERA" train base.yml $tiny $long run_name=early dataset_type=jsonl dataset_path="$work/book.jsonl" \
    >"$out" 2>"$err" </dev/null &
pid=$!
wait_for 30 grep -q '^engine' "$out"
kill -TERM $pid
ended 75 'SIGTERM before the first step'
says err 'stopped before the first step'
says_not out 'completed step'

# While a sample is written that would take minutes.
begin sampling sample_interval=60 sample_tokens=4000 warmup_steps_fraction=0 dataset_type=text dataset_path="$work/book.txt"
wait_for 30 grep -q '^completed step: 59,' "$out" || fail 'sampling: no sixtieth step'
sleep 0.5
kill -USR1 $pid
wait_for 10 grep -q 'saved checkpoint .*/60 ' "$out" || fail 'SIGUSR1 during a sample saves nothing' "$(show)"
kill -TERM $pid
before=$(date +%s)
ended 75 'SIGTERM during a sample'
[ $(($(date +%s) - before)) -le 3 ] || fail 'SIGTERM waited for the sample'
says_not out 'sample after'
[ "$(steps_of sampling)" = '0 60' ] || fail "SIGTERM during a sample saved $(steps_of sampling)"

begin user
kill -USR1 $pid
wait_for 30 grep -qE 'saved checkpoint .*/[1-9][0-9]* ' "$out" ||
    fail "SIGUSR1 saved nothing" "$(show)"
saved=$(steps_of user | awk '{ print $NF }')
wait_for 30 grep -q "^completed step: $((saved + 3))," "$out" ||
    fail "the run did not go on after SIGUSR1"
kill -TERM $pid
ended 75 'SIGTERM after SIGUSR1'
continues user

# As many as come: each is one save or none, and the run goes on.
begin burst
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    kill -USR1 $pid
    sleep 0.02
done
last=$(last_step burst)
wait_for 30 sh -c "[ \$(tail -n 1 '$(run_folder burst)/metrics.jsonl' | sed 's/[^0-9]*\\([0-9]*\\).*/\\1/') -gt $((last + 3)) ]" ||
    fail 'the run did not go on after many SIGUSR1'
kill -TERM $pid
ended 75 'SIGTERM after many SIGUSR1'
[ "$(steps_of burst | wc -w)" -ge 3 ] || fail "many SIGUSR1 saved $(steps_of burst)"
says_not err 'warning'
continues burst

# Every step is saved, so that a save is being written whenever a signal comes.
for signal in TERM INT HUP; do
    begin "saving-$signal" checkpoint_period=1 max_num_checkpoints_to_keep=3
    kill -$signal $pid
    case $signal in TERM) ended 75 SIGTERM ;; INT) ended 130 Ctrl-C ;; HUP) ended 129 SIGHUP ;; esac
    says err 'the same command continues'
    continues "saving-$signal"
done

# A second Ctrl-C does not wait for a save that takes a while; whichever checkpoint is the newest then, it is whole.
begin cut checkpoint_period=1 base_emb_dim=256 base_mlp_dim=1024 base_num_decoder_layers=4 per_device_batch_size=1
kill -INT $pid
wait_for 10 grep -q 'ends at once' "$err" || fail "cut: the first Ctrl-C says nothing"
kill -INT $pid
before=$(date +%s)
ended 130 'two Ctrl-C while a save is written'
[ $(($(date +%s) - before)) -le 3 ] || fail "the second Ctrl-C waited for a save"
newest=$(steps_of cut | awk '{ print $NF }')
expect 0 train base.yml $tiny $long run_name=cut base_emb_dim=256 base_mlp_dim=1024 base_num_decoder_layers=4 \
    per_device_batch_size=1 steps=$((newest + 1))
says_like out "^continuing run cut from .*/checkpoints/$newest\$"

# In the middle of an evaluation that would take much longer than anyone waits: SIGUSR1 does, because what is saved then
# is saved for good, and SIGTERM does not; whoever starts the run again evaluates first.
begin evaluating dataset_type=text dataset_path="$work/book.txt" eval_fraction=0.9 eval_interval=5
wait_for 30 grep -q '^completed step: 4,' "$out" || fail 'evaluating: no fifth step'
sleep 0.2
kill -USR1 $pid
sleep 0.5
grep -q 'saved checkpoint .*/5 ' "$out" && fail 'SIGUSR1 saves a step without its evaluation' "$(show)"
kill -TERM $pid
before=$(date +%s)
ended 75 'SIGTERM during an evaluation'
[ $(($(date +%s) - before)) -le 3 ] || fail 'SIGTERM waited for the evaluation'
says_not out 'Completed eval'
[ "$(steps_of evaluating)" = '0 5' ] ||
    fail "SIGTERM during an evaluation saved $(steps_of evaluating)"
expect 0 train base.yml $tiny $long run_name=evaluating dataset_type=text dataset_path="$work/book.txt" \
    eval_fraction=0.9 eval_interval=5 eval_steps=2 steps=6
says out 'Completed eval after train step 4,'
[ "$(grep -n 'eval after train step 4,' "$out" | cut -d: -f1)" -lt "$(grep -n '^completed step: 5,' "$out" | cut -d: -f1)" ] ||
    fail 'the evaluation that was broken off does not come before the next step' "$(show)"

# Twice: a step that takes seconds, so that the second comes while the first is still waited for.
: >"$out"; : >"$err"
env --default-signal=INT "$TESSERA" train base.yml $tiny run_name=twice steps=3 \
    per_device_batch_size=64 max_target_length=1024 base_num_decoder_layers=8 >"$out" 2>"$err" </dev/null &
pid=$!
wait_for 60 [ -d "$(run_folder twice)/checkpoints/0" ] || fail "twice: no start" "$(show)"
sleep 0.3
kill -INT $pid
wait_for 10 grep -q 'ends at once' "$err" || fail "twice: the first Ctrl-C says nothing"
kill -INT $pid
before=$(date +%s)
ended 130 'two Ctrl-C'
[ $(($(date +%s) - before)) -le 3 ] || fail "the second Ctrl-C took its time"
[ "$(steps_of twice)" = 0 ] || fail "the second Ctrl-C saved: $(steps_of twice)"

begin killed checkpoint_period=2
wait_for 60 grep -qE 'saved checkpoint .*/[1-9][0-9]* ' "$out" || fail 'killed: nothing is saved' "$(show)"
kill -KILL $pid
wait $pid
code=$?
[ $code = 137 ] || fail "exit $code instead of 137 after SIGKILL"
newest=$(ls "$(run_folder killed)/checkpoints" | grep -v tmp | sort -n | tail -n 1)
[ "$newest" -ge 2 ] || fail "no checkpoint before the kill"
expect 0 train base.yml $tiny $long run_name=killed steps=$((newest + 2))
says_like out "continuing run killed from .*/checkpoints/$newest\$"

# On an asynchronous engine a step is in flight then: it is finished and saved, and another engine goes on from there.
fake=$(dirname "$TESSERA")/tests/fake/libfake_pjrt.so
[ -e "$fake" ] || fail "$fake is not built"
export FAKE_PJRT_SLOW_MS=20
for signal in TERM INT; do
    begin "ahead-$signal" plugin="$fake"
    kill -$signal $pid
    [ $signal = TERM ] && ended 75 SIGTERM || ended 130 Ctrl-C
    continues "ahead-$signal"
done
begin ahead-usr1 plugin="$fake"
kill -USR1 $pid
wait_for 60 grep -q 'saved checkpoint .*/[1-9]' "$out" || fail 'SIGUSR1 saves nothing' "$(show)"
kill -TERM $pid
ended 75 SIGTERM
continues ahead-usr1
unset FAKE_PJRT_SLOW_MS

# A stop that is asked for without checkpoints still stops, and says that nothing is kept.
begin unsaved enable_checkpointing=false
kill -INT $pid
ended 130 'Ctrl-C without checkpoints'
says_not err 'the same command continues'
says err 'nothing was saved'
finish
