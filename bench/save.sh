#!/bin/sh
# save.sh: what a checkpoint costs the training: the step before and after it, with the copy written beside the
# training, with the training waiting, and without checkpoints; beside the speed of memcpy on this machine.
#
# ENGINE_KEYS chooses the engine ("engine=xla plugin=cpu"), STEPS and PERIOD when is saved; the shape is common.sh's.
# Files go to $BUILD/bench, which must be on the disk that is asked about.
set -eu
cd "$(dirname "$0")/.."
: "${LAYERS:=4}" "${EMB:=512}" "${HEADS:=8}" "${KV:=8}" "${FFN:=2048}" "${BATCH:=2}" "${SEQ:=64}" "${STEPS:=20}" "${PERIOD:=5}"
: "${VOCABULARY:=8192}"
. bench/common.sh
tool=$out/copy_peak
if [ ! -x "$tool" ] || [ bench/copy_peak.c -nt "$tool" ]; then
    "${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O2 -o "$tool" bench/copy_peak.c
fi

# run NAME KEY…: its log in $out/save-NAME.log.
run() {
    log=$out/save-$1.log
    shift
    rm -rf "$out/save"
    # shellcheck disable=SC2086
    "$BUILD/tessera" train base.yml base_num_decoder_layers="$LAYERS" base_emb_dim="$EMB" base_mlp_dim="$FFN" \
        base_num_query_heads="$HEADS" base_num_kv_heads="$KV" head_dim=$((EMB / HEADS)) vocab_size="$VOCABULARY" \
        dataset_type=synthetic dtype="$DTYPE" steps="$STEPS" per_device_batch_size="$BATCH" max_target_length="$SEQ" \
        remat_policy=none learning_rate=1e-4 run_name=save base_output_directory="$out" log_config=false \
        max_num_checkpoints_to_keep=2 checkpoint_period="$PERIOD" $ENGINE_KEYS "$@" >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        exit 1
    }
}

# table NAME: medians of its steps: those right behind a save, and the others; seconds that it stood still for a save
# (the first apart), seconds of writing.
table() {
    awk -v period="$PERIOD" -v name="$1" '
        function median(x, n,    i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && x[j - 1] > x[j]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
            return n ? (n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2) : 0
        }
        /^completed step:/ { s = $3 + 0; t = $5 + 0
            if (s >= period) { if (s % period == 0) behind[++nb] = t; else other[++no] = t } }
        /^saved checkpoint/ {
            still = $0; beside = /beside the training/
            sub(/.*\(/, "", still); sub(/.*copy /, "", still)
            wrote = $0; sub(/.*written in /, "", wrote)
            if (saves++) { stood[++ns] = still + 0; written[++nw] = (beside ? wrote : still) + 0 } else first = still + 0
        }
        END {
            printf "%-12s %10.3f %12.3f", name, median(other, no), median(behind, nb)
            if (saves) printf " %13.3f %13.3f %10.3f", first, median(stood, ns), median(written, nw)
            printf "\n"
        }' "$out/save-$1.log"
}

run none enable_checkpointing=false
run beside async_checkpointing=true
bytes=$(cat "$out"/save/checkpoints/*/*.safetensors | wc -c)
bytes=$((bytes / $(ls "$out/save/checkpoints" | wc -l)))
run waiting async_checkpointing=false
"$tool" $((bytes / 1000000)) >"$out/copy.json"
echo "a checkpoint of $((bytes / 1000000)) MB every $PERIOD steps, $ENGINE_KEYS; seconds, medians"
printf '%-12s %10s %12s %13s %13s %10s\n' '' step 'behind one' 'first stop' 'later stops' written
for name in none beside waiting; do table $name; done
awk -v n="$bytes" -v a="$(number "$out/copy.json" copy_bytes)" -v b="$(number "$out/copy.json" first_copy_bytes)" 'BEGIN {
    printf "memcpy of as much: %.3f s (%.1f GB/s); into new memory %.3f s (%.1f GB/s)\n", n / a, a / 1e9, n / b, b / 1e9 }'
