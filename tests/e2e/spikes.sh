#!/bin/sh
# spikes.sh: spike_policy=rollback goes back to the newest checkpoint and on behind the data of the spike: the same again
# when it is repeated, after a kill -9, and on an engine with steps in flight; it gives up after max_spike_rollbacks.
. "$(dirname "$0")/../cli_help.sh"

# 64 bytes a step, in order: words, and noise in step 60; many.txt has it from there to step 67.
book() { # NOISY STEPS
    awk -v noisy="$1" 'BEGIN {
        srand(3)
        n = split("the cat sat on mat and dog ran", word, " ")
        for (step = 0; step < 1500; step++) {
            line = ""
            noise = step >= 60 && step < 60 + noisy
            while (length(line) < 64)
                line = line (noise ? sprintf("%c", 33 + int(rand() * 94)) : word[1 + int(rand() * n)] " ")
            printf "%s", substr(line, 1, 64)
        }
    }'
}
book 1 >"$work/one.txt"
book 8 >"$work/many.txt"
run="$tiny enable_data_shuffling=false num_epoch=1 learning_rate=2e-2 warmup_steps_fraction=0.02 steps=90
     learning_rate_schedule_steps=100 spike_policy=rollback spike_window=16 spike_threshold=8 checkpoint_period=25
     dataset_type=text dataset_path=$work/one.txt"
spiky() { # CODE RUN WORD…
    code=$1 name=$2
    shift 2
    expect "$code" train base.yml $run run_name="$name" "$@"
}
# Bytes of the weights and moments that a run ended with.
same_end() { # RUN RUN STEP
    cmp -s "$(shard_of "$1" "$3")" "$(shard_of "$2" "$3")" || fail "$1 and $2 end differently"
}
# What each step said that counts: the last line of its number.
last_losses() { losses "$1" | awk '{ l[$1] = $2 } END { for (s in l) print s, l[s] }' | sort -n; }

# How it goes: 50 … 60, the spike, back to 50, and to the end.
spiky 0 straight
says err 'step 60: loss'
says err 'is a spike, more than spike_threshold=8 deviations'
says err 'back to the newest checkpoint, and on behind the data of step 60'
says_like out '^back to step 50, from .*/straight/checkpoints/50$'
[ "$(grep -c 'is a spike' "$err")" = 1 ] || fail "more than one spike" "$(show)"
[ "$(losses straight | awk '{ print $1 }' | tr '\n' ' ')" = "$( (seq 0 60; seq 50 89) | tr '\n' ' ')" ] ||
    fail "steps of the run: $(losses straight | awk '{ print $1 }' | tr '\n' ' ')"
grep '^{"step": 89,' "$work/runs/straight/metrics.jsonl" | grep -q '"learning/rollbacks": 1' ||
    fail 'the last line does not count the rollback'
[ "$(grep '"step": 50,' "$work/runs/straight/metrics.jsonl" | sed 's/.*current_learning_rate": \([^,]*\),.*/\1/' |
    sort -u | wc -l)" = 1 ] || fail 'the learning rate does not follow the step'
# The noise is left out: what it costs is not in any loss that counts.
last_losses straight | awk '$1 >= 50 && $2 > 2 { exit 1 }' || fail 'a loss behind the rollback is high'

# The same again; on an engine with two steps in flight, too.
spiky 0 again
same_end straight again 90
[ "$(losses straight)" = "$(losses again)" ] || fail 'the repeated run has other losses'
fake=$(dirname "$TESSERA")/tests/fake/libfake_pjrt.so
[ -e "$fake" ] || fail "$fake is not built"
spiky 0 ahead plugin="$fake"
[ "$(losses straight)" = "$(losses ahead)" ] || fail 'with steps in flight the losses are others'
spiky 0 saved-at-once async_checkpointing=false
same_end straight saved-at-once 90

# As if killed at any moment between the rollback and the next checkpoint: the state is that of step 50.
rm -rf "$work/runs/again/checkpoints/75" "$work/runs/again/checkpoints/90"
spiky 0 again
says_like out '^continuing run again from .*/checkpoints/50$'
says err 'on behind the data of step 60'
same_end straight again 90
[ "$(last_losses straight)" = "$(last_losses again)" ] || fail 'the resumed run has other losses'
# And from a checkpoint behind it, which remembers what was left out.
rm -rf "$work/runs/again/checkpoints/90"
spiky 0 again
says_like out '^continuing run again from .*/checkpoints/75$'
says_not err 'is a spike'
same_end straight again 90

# kill -9 for real.
long="steps=1400 learning_rate_schedule_steps=1400 checkpoint_period=50 warmup_steps_fraction=0.002"
spiky 0 whole $long
[ "$(grep -c 'on behind the data' "$err")" -ge 1 ] || fail 'no rollback in the long run' "$(show)"
: >"$out"; : >"$err"
"$TESSERA" train base.yml $run $long run_name=killed >"$out" 2>"$err" </dev/null &
pid=$!
wait_for 60 grep -q '^back to step' "$out" || fail 'killed: no rollback' "$(show)"
kill -KILL $pid
wait $pid 2>/dev/null
[ -e "$work/runs/killed/checkpoints/1400" ] && fail 'it ended before it was killed'
spiky 0 killed $long
same_end whole killed 1400
[ "$(last_losses whole)" = "$(last_losses killed)" ] || fail 'the killed run has other losses'

# More noise than rollbacks: exit 6, and the checkpoint is still there.
spiky 6 many dataset_path="$work/many.txt" max_spike_rollbacks=3
says err '3 rollbacks to one checkpoint did not get past it (max_spike_rollbacks=3)'
says_like err 'the newest checkpoint is .*/many/checkpoints/50\. Lower learning_rate'
[ "$(grep -c '^back to step 50' "$out")" = 3 ] || fail 'not three rollbacks' "$(show)"
spiky 6 none-allowed max_spike_rollbacks=0
says err '0 rollbacks'
spiky 0 enough dataset_path="$work/many.txt" max_spike_rollbacks=9
[ "$(grep -c '^back to step 50' "$out")" = 8 ] || fail 'not eight rollbacks' "$(show)"

# Without a checkpoint yet it is told, and the run goes on.
spiky 0 unsaved save_checkpoint_on_start=false checkpoint_period=10000
says err 'there is no checkpoint to go back to, and the run goes on'
[ "$(losses unsaved | wc -l)" = 90 ] || fail 'steps were run again without a checkpoint'

# Data that ends: what was left out is gone, so the steps are fewer.
spiky 0 short steps=10000 learning_rate_schedule_steps=10000 warmup_steps_fraction=0.0002
says_like out '^the data ended after step 1[0-9]* '

# Keys.
expect 2 train base.yml $run run_name=off enable_checkpointing=false
says err 'enable_checkpointing=false writes none'
expect 2 train base.yml $run run_name=off spike_policy=skip
train off spike_window=20 max_spike_rollbacks=1
says err 'spike_window has an effect with spike_policy=rollback only'
says err 'max_spike_rollbacks has an effect with spike_policy=rollback only'
expect 2 train base.yml $run run_name=off skip_step_on_spikes=true
says err 'spike_policy=rollback'
finish
