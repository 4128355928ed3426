#!/bin/sh
# object_store.sh: a run whose folder lies on a mount with an object store's limits: folders cannot be renamed, files
# have one name each and are seen once they were closed. Checkpoints are then committed by their manifest, without a
# key that says so; whatever kills a save, the run goes on from a whole checkpoint to the same losses.
. "$(dirname "$0")/../fuse_help.sh"

mount_slow "$work/back" "$work/mnt" write=3 sync=10 link=no rename_folder=no visible=close
mkdir "$work/mnt/runs" "$work/disk"
ln -s "$work/mnt/runs" "$work/runs" # where train and its helpers look
on_disk="base_output_directory=$work/disk"
every="checkpoint_period=1 steps=40 learning_rate_schedule_steps=40"

# ---- the manifest is the commit, by itself -------------------------------------------------------
train plain steps=4 checkpoint_period=2
[ "$(steps_of plain)" = '0 2 4' ] || fail "steps on the mount: $(steps_of plain)"
expect 0 train base.yml $tiny run_name=plain steps=4 checkpoint_period=2 $on_disk
[ "$(losses plain)" = "$(sed -n 's/^{"step": \([0-9]*\),.*"learning\/loss": \([^,]*\),.*/\1 \2/p' "$work/disk/plain/metrics.jsonl")" ] ||
    fail 'the losses on the mount are others than on a disk'
train plain steps=6 checkpoint_period=2
says out 'continuing run plain'
says_like out '^completed step: 4, '
expect 0 checkpoint verify "$work/runs/plain"

# A rename is refused there, and then nothing pretends to be a checkpoint.
expect 1 train base.yml $tiny run_name=renamed steps=4 checkpoint_commit=rename
says err 'cannot rename'
[ -z "$(steps_of renamed)" ] || fail "a failed rename left $(steps_of renamed)"
# The manifest as commit is no matter of the mount.
expect 0 train base.yml $tiny run_name=manifest steps=4 checkpoint_period=2 checkpoint_commit=manifest $on_disk
expect 0 checkpoint verify "$work/disk/manifest"

# What is frozen is in every step's folder, as a copy where there are no links.
train frozen steps=4 checkpoint_period=2 'frozen_parameters=[*.mlp.*]'
for step in 0 2 4; do
    [ "$(ls "$work/runs/frozen/checkpoints/$step" | grep -c '^frozen-0')" = 1 ] ||
        fail "no frozen shard in step $step: $(ls "$work/runs/frozen/checkpoints/$step" | tr '\n' ' ')"
done
cp -r "$work/runs/frozen/checkpoints/4" "$work/copied"
expect 0 checkpoint verify "$work/copied"

# ---- folders without a manifest ------------------------------------------------------------------
# What a save began is no checkpoint: it is passed over, however many there are, and goes with the next that are kept.
train begun steps=8 checkpoint_period=2 max_num_checkpoints_to_keep=3
for step in 9 10 11 12; do
    mkdir "$work/runs/begun/checkpoints/$step"
    : >"$work/runs/begun/checkpoints/$step/unfinished"
    cp "$work/runs/begun/checkpoints/8/shard-00000-of-00001.safetensors" "$work/runs/begun/checkpoints/$step"
done
train begun steps=14 checkpoint_period=2 max_num_checkpoints_to_keep=3
says out "continuing run begun from $work/runs/begun/checkpoints/8"
says_like out '^completed step: 8, '
[ "$(steps_of begun)" = '10 12 14' ] || fail "what was begun is still there: $(steps_of begun)"
expect 0 checkpoint verify "$work/runs/begun"

# ---- kill -9 while checkpoints are written -------------------------------------------------------
expect 0 train base.yml $tiny run_name=whole $every enable_checkpointing=false $on_disk
wanted=$(sed -n 's/^{"step": \([0-9]*\),.*"learning\/loss": \([^,]*\),.*/\1 \2/p' "$work/disk/whole/metrics.jsonl")
# The very first save: what it began is no reason not to begin again.
"$TESSERA" train base.yml $tiny run_name=killed $every >"$out" 2>"$err" </dev/null &
pid=$!
wait_for 20 [ -e "$work/runs/killed/checkpoints/0" ] || fail 'no first save' "$(show)"
kill -KILL $pid
wait $pid
[ -e "$work/runs/killed/checkpoints/0/manifest.json" ] && echo 'the first save had ended before it was killed'
inside=0
for round in $(seq "${KILLS:-10}"); do
    "$TESSERA" train base.yml $tiny run_name=killed $every >"$out" 2>"$err" </dev/null &
    pid=$!
    wait_for 20 grep -qE '^(saved checkpoint|continuing run)' "$out" || fail "round $round: no start" "$(show)"
    sleep "0.$(awk -v r="$round" 'BEGIN { printf "%03d", r * 37 % 150 }')"
    kill -KILL $pid 2>/dev/null
    wait $pid
    for step in $(steps_of killed); do
        [ -e "$work/runs/killed/checkpoints/$step/manifest.json" ] || inside=$((inside + 1))
    done
done
echo "killed ${KILLS:-10} times, $inside folders had no manifest; whole: $(steps_of killed)"
expect 0 train base.yml $tiny run_name=killed $every
says_like out '^(continuing run killed from|run killed has already)'
# Steps that were done twice have the same loss twice.
[ "$(losses killed | sort -un)" = "$(echo "$wanted" | sort -un)" ] || fail 'the losses of the killed run are others'
losses killed | sort -u | awk '{ if (seen[$1]++) exit 1 }' || fail 'a step that was done again has another loss'
expect 0 checkpoint verify "$work/runs/killed"
finish_slow
