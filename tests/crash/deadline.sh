#!/bin/sh
# deadline.sh: a run that cannot end in the grace of a SIGTERM says what is lost and ends with 75 all the same; what does not
# end within step_timeout_s ends the run with 5. Steps, compilation and output that hang, on the fake plugin and the cpu.
. "$(dirname "$0")/../cli_help.sh"

fake=$(dirname "$TESSERA")/tests/fake/libfake_pjrt.so
[ -e "$fake" ] || { rm -rf "$work"; echo "$fake is not built"; exit 1; }
if ! env --default-signal=INT true 2>/dev/null; then
    rm -rf "$work"
    echo "env(1) cannot put signals back (coreutils before 8.31)"
    exit 77
fi
long="steps=1000000 learning_rate_schedule_steps=1000000"
# The environment of the plugin goes in front: begin RUN VARIABLE=VALUE… -- WORD…
begin() {
    run=$1 vars=
    shift
    while [ "$1" != -- ]; do
        vars="$vars $1"
        shift
    done
    shift
    : >"$out"; : >"$err"
    env --default-signal=INT $vars "$TESSERA" train base.yml $tiny $long run_name="$run" plugin="$fake" "$@" \
        >"$out" 2>"$err" </dev/null &
    pid=$!
}
ended() { # CODE SECONDS WHAT
    wait $pid
    code_is "$1" $? "$3"
    took=$(($(date +%s) - asked))
    [ $took -le "$2" ] || fail "$3 took $took s instead of at most $2"
}
ask() { # SIGNAL
    asked=$(date +%s)
    kill "-$1" $pid
}
# Whatever was half done: the newest checkpoint is whole and the run goes on from it.
goes_on() { # RUN STEP
    expect 0 train base.yml $tiny $long run_name="$1" steps=$(($2 + 2))
    says_like out "^continuing run $1 from .*/checkpoints/$2\$"
}

# A step longer than the grace. The third is in flight behind the second when it hangs.
begin step FAKE_PJRT_HANG=PJRT_LoadedExecutable_Execute@9 -- preemption_grace_s=2 checkpoint_period=4
wait_for 60 grep -q '/checkpoints/4 ' "$out" || fail 'step: no checkpoint' "$(show)"
wait_for 60 grep -q 'waiting for a metadata server' "$err" || fail 'step: nothing hangs' "$(show)"
ask TERM
sleep 0.3
kill -TERM $pid
ended 75 3 'SIGTERM in a step that hangs'
says err 'SIGTERM: stopping after this step'
says err 'SIGTERM again: it is stopping already'
says_like err 'the 2 s of preemption_grace_s are over, and step [0-9]* has not ended'
says_like err 'the newest checkpoint is .*/step/checkpoints/[48], [0-9]* steps? back, and the same command goes on'
goes_on step "$(steps_of step | awk '{ print $NF }')"

# Ctrl-C waits without a limit, and a second one does not.
begin twice FAKE_PJRT_HANG=PJRT_LoadedExecutable_Execute@6 -- preemption_grace_s=1 step_timeout_s=0
wait_for 60 grep -q 'waiting for a metadata server' "$err" || fail 'twice: nothing hangs' "$(show)"
ask INT
sleep 1.5
kill -0 $pid || fail 'Ctrl-C has a deadline'
ask INT
ended 130 2 'the second Ctrl-C in a step that hangs'

# Everything trained is lost: that is no 75.
begin lost FAKE_PJRT_HANG=PJRT_LoadedExecutable_Execute@6 -- preemption_grace_s=1 enable_checkpointing=false
wait_for 60 grep -q 'waiting for a metadata server' "$err" || fail 'lost: nothing hangs' "$(show)"
ask TERM
ended 1 2 'SIGTERM with nothing saved'
says err 'there is no checkpoint, and all steps are lost'

# While it is compiled, nothing is lost.
begin compiling FAKE_PJRT_HANG=PJRT_Client_Compile -- preemption_grace_s=1 step_timeout_s=1
wait_for 60 grep -q 'waiting for a metadata server' "$err" || fail 'compiling: nothing hangs' "$(show)"
sleep 1.5
kill -0 $pid || fail 'compilation is watched' "$(show)"
ask TERM
ended 75 2 'SIGTERM while it is compiled'
says err 'and the start has not ended; there is no checkpoint; raise'

# The watch: a call that does not return, and a device that does not answer.
begin hang FAKE_PJRT_HANG=PJRT_LoadedExecutable_Execute@9 -- step_timeout_s=1 checkpoint_period=4
asked=$(date +%s)
ended 5 20 'a step that hangs'
says_like err 'tessera train: step [0-9]* has not ended for 1 s \(step_timeout_s=1\); the newest checkpoint is .*/checkpoints/[48],'
says err 'see whether the devices and their driver answer, and a larger step_timeout_s waits longer'
goes_on hang "$(steps_of hang | awk '{ print $NF }')"
begin lame FAKE_PJRT_SLOW_MS=15000 -- step_timeout_s=1
asked=$(date +%s)
ended 5 10 'a device that does not answer'
says_like err 'step 0 has not ended for 1 s .*/checkpoints/0, 0 steps back'
awk 'BEGIN { for (i = 0; i < 4000; i++) print "line " i " of a book" }' >"$work/book.txt"
begin evaluation FAKE_PJRT_HANG=PJRT_LoadedExecutable_Execute@4 -- step_timeout_s=1 eval_interval=2 eval_steps=3 \
    dataset_type=text dataset_path="$work/book.txt" eval_fraction=0.1
asked=$(date +%s)
ended 5 20 'an evaluation that hangs'
says_like err 'evaluation batch 1 has not ended for 1 s'

# Nobody reads the lines: no limit holds for that, but a SIGTERM ends it; what is held is no lock that matters.
mkfifo "$work/pipe"
sleep 60 <"$work/pipe" &
reader=$!
"$TESSERA" train base.yml $tiny $long run_name=unread preemption_grace_s=2 step_timeout_s=1 checkpoint_period=100 \
    >"$work/pipe" 2>"$err" </dev/null &
pid=$!
: >"$out"
wait_for 60 [ -d "$work/runs/unread/checkpoints/200" ] || fail 'unread: no steps' "$(show)"
sleep 2.5
kill -0 $pid || fail 'a reader that pauses ends the run' "$(show)"
ask TERM
ended 75 3 'SIGTERM while nobody reads'
says err 'the 2 s of preemption_grace_s are over, and writing the output has not ended'
kill $reader
newest=$(steps_of unread | awk '{ print $NF }')
goes_on unread "$newest"

# Whoever reads the code finds it in the help.
expect 0 train --help
for code in 0 1 2 3 4 5 6 75 129 130; do
    says_like out "(exit codes:|,) $code [a-zA-Z]|^data.*, $code"
done
finish
