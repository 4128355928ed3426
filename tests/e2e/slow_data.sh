#!/bin/sh
# slow_data.sh: data on a mount whose every read takes its time, shuffled text and packed rows: reading ahead hides the
# reads behind the steps, and without it every step waits for them. One thread computes, so that no machine's steps are
# shorter than a few reads. The bound here is loose, for machines that do other things too; bench/data_wait.sh measures.
. "$(dirname "$0")/../fuse_help.sh"

steps=16
[ -z "${TESSERA_SLOW:-}" ] || steps=9 # the steps of sanitizers take seconds
model="base_emb_dim=192 base_num_query_heads=4 base_num_kv_heads=4 head_dim=48 base_mlp_dim=512
       base_num_decoder_layers=4 vocab_size=259 max_target_length=128 per_device_batch_size=8 dtype=float32
       steps=${SLOW_DATA_STEPS:-$steps} learning_rate=1e-3 learning_rate_schedule_steps=16 num_epoch=4 threads=1
       data_threads=16 log_config=false enable_checkpointing=false
       base_output_directory=$work/runs"

ms=${SLOW_DATA_MS:-15}
mount_slow "$work/back" "$work/mnt" "read=$ms"
awk 'BEGIN { for (i = 0; i < 30000; i++) print "line " i " of a book, which says " i * i % 9973 " and no more" }' \
    >"$work/back/book.txt"
awk 'BEGIN { for (i = 0; i < 1000; i++) {
    text = "row " i " says"
    for (k = 0; k < 11 + i % 7 * 2; k++) text = text " " (i * 31 + k * k) % 997
    print "{\"text\": \"" text "\"}" } }' >"$work/back/rows.jsonl"

# waits RUN: percent of the steps behind the first three that was spent waiting for data, and milliseconds of each.
waits() {
    sed -n 's/^{"step": \([0-9]*\),.*"perf\/step_time_seconds": \([^,]*\),.*"perf\/data_wait_seconds": \([^,]*\),.*/\1 \2 \3/p' \
        "$work/runs/$1/metrics.jsonl" |
        awk '$1 > 2 { n++; all += $2; wait += $3 }
             END { if (n < 5) exit 1; printf "%.3f %.1f %.1f\n", 100 * wait / all, 1000 * wait / n, 1000 * all / n }'
}

# compare NAME WORD…: the same run with reading ahead and without.
compare() {
    name=$1
    shift
    expect 0 train base.yml $model run_name="$name-ahead" "$@"
    expect 0 train base.yml $model run_name="$name-alone" data_prefetch_batches=0 steps=8 "$@"
    ahead=$(waits "$name-ahead") alone=$(waits "$name-alone")
    echo "$name: waited $ahead (percent, ms, ms a step) with reading ahead, $alone without"
    echo "$ahead" | awk -v most="${SLOW_DATA_MOST:-5}" '{ n = NF } END { exit !(n == 3 && $1 <= most) }' ||
        fail "$name: steps wait for data: $ahead"
    # Eight rows, one read each at least.
    echo "$alone" | awk -v ms="$ms" '{ n = NF } END { exit !(n == 3 && $2 >= 8 * ms) }' ||
        fail "$name: without reading ahead a step waits too little: $alone; the mount is not slow"
    [ "$(losses "$name-ahead" | head -n 8)" = "$(losses "$name-alone")" ] ||
        fail "$name: reading ahead changes the losses"
}

compare text dataset_type=text dataset_path="$work/mnt/book.txt"
compare rows dataset_type=jsonl dataset_path="$work/mnt/rows.jsonl" packing=true
finish_slow
