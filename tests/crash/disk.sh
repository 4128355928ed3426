#!/bin/sh
# disk.sh: a disk that is full or read-only, really: the run ends with 1 (or 2 before it starts) and a
# message that names the path; the checkpoint of before is whole, and with room the run goes on.
. "$(dirname "$0")/../cli_help.sh"

# A small tmpfs in a mount namespace of its own: this script again, inside.
if [ "${1-}" != inside ]; then
    mkdir "$work/disk"
    if ! unshare -m sh -c "mount -t tmpfs -o size=64k tmpfs '$work/disk'" 2>"$err"; then
        why=$(tail -n 1 "$err")
        rm -rf "$work"
        echo "no tmpfs could be mounted: $why"
        exit 77
    fi
    rm -rf "$work"
    exec unshare -m sh "$0" inside
fi
disk=$work/disk
mkdir "$disk"
mount -t tmpfs -o size=1m tmpfs "$disk" || { echo "no tmpfs could be mounted"; exit 77; }
on_disk="base_output_directory=$disk"
folder=$disk/saving

# ---- full while saving ---------------------------------------------------------------------------
# A checkpoint of this model takes about 150 KiB: four fit beside a filler, the fifth does not.
expect 0 train base.yml $tiny $on_disk run_name=saving steps=2 checkpoint_period=1
cp -r "$folder/checkpoints/2" "$work/kept"
dd if=/dev/zero of="$disk/filler" bs=1024 count=$(($(df -Pk "$disk" | awk 'NR == 2 { print $4 }') - 100)) 2>/dev/null
expect 1 train base.yml $tiny $on_disk run_name=saving steps=6 learning_rate_schedule_steps=2 checkpoint_period=1
says err 'no space left on the disk'
says err "$folder/checkpoints"
says err 'the checkpoint of step 3 was not saved'
diff -r "$work/kept" "$folder/checkpoints/2" >/dev/null || fail 'the checkpoint of before changed'
[ "$(ls "$folder/checkpoints" | sort -n | tr '\n' ' ')" = '0 1 2 ' ] ||
    fail "left in checkpoints: $(ls "$folder/checkpoints")"
rm "$disk/filler"
expect 0 train base.yml $tiny $on_disk run_name=saving steps=3
says out "continuing run saving from $folder/checkpoints/2"

# ---- full before a run has begun -----------------------------------------------------------------
dd if=/dev/zero of="$disk/filler" bs=1024 2>/dev/null
expect 1 train base.yml $tiny $on_disk run_name=late steps=2
says err 'no space left on the disk'
says err "$disk/late"

# ---- full for metrics: what was trained is saved where there is room -----------------------------
# About twelve lines find room.
rm "$disk/filler"
dd if=/dev/zero of="$disk/filler" bs=1024 count=$(($(df -Pk "$disk" | awk 'NR == 2 { print $4 }') - 8)) 2>/dev/null
expect 1 train base.yml $tiny run_name=metrics steps=600 metrics_file="$disk/metrics.jsonl"
says err "$disk/metrics.jsonl"
says err 'no space left on the disk'
done_steps=$(grep -c '^completed step' "$out")
[ "$done_steps" -lt 100 ] ||
    fail "the metrics file was full and the run went on for $done_steps steps"
[ "$(steps_of metrics)" = "0 $done_steps" ] ||
    fail "the work of a run without room for metrics is lost: $(steps_of metrics)"
rm "$disk/filler"
train metrics steps=$((done_steps + 2)) metrics_file="$disk/metrics.jsonl"
says out "continuing run metrics from $work/runs/metrics/checkpoints/$done_steps"
[ "$(grep -vc '^{.*}$' "$disk/metrics.jsonl")" -le 1 ] ||
    fail "more than the cut line is damaged: $(grep -v '^{.*}$' "$disk/metrics.jsonl")"
grep -q "^{\"step\": $done_steps, .*}\$" "$disk/metrics.jsonl" ||
    fail 'the line behind the cut one is damaged'

# ---- read-only -----------------------------------------------------------------------------------
mount -o remount,ro "$disk"
expect 2 train base.yml $tiny $on_disk run_name=saving steps=9
says err "is read-only, or not this user's to write"
expect 2 train base.yml $tiny $on_disk run_name=other
says err "$disk is read-only"
expect 0 generate --model "$folder" --prompt ab --max-new 2
umount "$disk"
finish
