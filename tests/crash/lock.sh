#!/bin/sh
# lock.sh: one process at a time trains a run; a second is refused at once and told by whom. A process that was
# killed leaves no lock behind, and reading commands ask for none.
. "$(dirname "$0")/../cli_help.sh"
long="steps=1000000 learning_rate_schedule_steps=1000000"

begin() { # RUN
    : >"$work/first"
    "$TESSERA" train base.yml $tiny $long run_name="$1" >"$work/first" 2>&1 </dev/null &
    pid=$!
    wait_for 60 grep -q '^completed step: 3,' "$work/first" || fail "$1: no steps" "$(cat "$work/first")"
}
refused() { # RUN
    metrics=$(run_folder "$1")/metrics.jsonl
    cp "$(run_folder "$1")/config.yml" "$work/config"
    expect 2 train base.yml $tiny $long run_name="$1" learning_rate=1e-9
    says err "run $1 is being trained: $(run_folder "$1")/lock is held by process $pid on $(uname -n)"
    says err 'another run_name'
    says_not out 'completed step'
    says_not out 'continuing run'
    cmp -s "$work/config" "$(run_folder "$1")/config.yml" || fail "$1: a refused process changed config.yml"
    grep -q '"learning/current_learning_rate": 1e-09' "$metrics" && fail "$1: two processes wrote metrics"
}

begin one
refused one
expect 0 generate --model "$(run_folder one)" --prompt a --max-new 2
# Another run beside it is nobody's business.
train other
kill -TERM $pid
wait $pid
code_is 75 $? 'SIGTERM of the process that holds the lock'
expect 0 train base.yml $tiny $long run_name=one steps=$(($(losses one | tail -n 1 | cut -d' ' -f1) + 2))

begin killed
refused killed
kill -KILL $pid
wait $pid 2>/dev/null
[ -e "$(run_folder killed)/lock" ] || fail 'the lock has no file'
expect 0 train base.yml $tiny $long run_name=killed steps=2000000000 num_epoch=1 enable_checkpointing=false \
    abort_on_nan_loss=true steps=5
says_not err 'is being trained'

# Two that start at the same moment: one trains, one is refused.
for i in 1 2; do
    "$TESSERA" train base.yml $tiny run_name=both steps=3000 learning_rate_schedule_steps=3000 \
        >"$work/out$i" 2>"$work/err$i" </dev/null &
    eval "pid$i=$!"
done
wait $pid1
first=$?
wait $pid2
second=$?
case "$first $second" in
    '0 2' | '2 0') ;;
    *) fail "two at once end with $first and $second" "$(cat "$work/err1" "$work/err2")" ;;
esac
[ "$(losses both | wc -l)" = 3000 ] || fail "two at once wrote $(losses both | wc -l) lines of metrics"
finish
