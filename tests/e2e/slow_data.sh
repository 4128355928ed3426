#!/bin/sh
# slow_data.sh: data on a mount whose every read takes its time, shuffled text and packed rows: reading ahead hides the
# reads behind the steps, and without it the step waits for them. The bound here is loose, for machines that do other
# things too; bench/data_wait.sh measures it.
. "$(dirname "$0")/../fuse_help.sh"

model="base_emb_dim=192 base_num_query_heads=4 base_num_kv_heads=4 head_dim=48 base_mlp_dim=512
       base_num_decoder_layers=4 vocab_size=259 max_target_length=128 per_device_batch_size=8 dtype=float32
       steps=${SLOW_DATA_STEPS:-24} learning_rate=1e-3 learning_rate_schedule_steps=24 log_config=false enable_checkpointing=false
       base_output_directory=$work/runs"

mount_slow "$work/back" "$work/mnt" "read=${SLOW_DATA_MS:-15}"
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
    expect 0 train base.yml $model run_name="$name-alone" data_prefetch_batches=0 steps=9 "$@"
    ahead=$(waits "$name-ahead") alone=$(waits "$name-alone")
    echo "$name: waited $ahead (percent, ms, ms a step) with reading ahead, $alone without"
    awk -v a="${ahead%% *}" -v most="${SLOW_DATA_MOST:-5}" 'BEGIN { exit !(a != "" && a <= most) }' ||
        fail "$name: steps wait for data: $ahead"
    awk -v a="${alone%% *}" 'BEGIN { exit !(a != "" && a >= 15) }' ||
        fail "$name: without reading ahead nothing waits: $alone; the mount is not slow"
    [ "$(losses "$name-ahead" | head -n 9)" = "$(losses "$name-alone")" ] || fail "$name: reading ahead changes the losses"
}

compare text dataset_type=text dataset_path="$work/mnt/book.txt"
compare rows dataset_type=jsonl dataset_path="$work/mnt/rows.jsonl" packing=true
finish_slow
