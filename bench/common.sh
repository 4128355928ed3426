# common.sh – what the benchmark scripts share; sourced, not run.
#
# Shape (environment): LAYERS=4 EMB=256 HEADS=8 KV=4 FFN=704 BATCH=16 SEQ=256 DTYPE=float32 STEPS,
# DATA=a text file. BENCH_PYTHON names a python that has torch and transformers; without it there is
# no other side and no ratio. Results go to $BUILD/bench. ENGINE_KEYS and TORCH_DEVICE choose another device
# than this CPU (gpu.sh).

: "${BUILD:=build}" "${LAYERS:=4}" "${EMB:=256}" "${HEADS:=8}" "${KV:=4}" "${FFN:=704}" "${BATCH:=16}" "${SEQ:=256}"
: "${DTYPE:=float32}" "${RATE:=2e-3}" "${DATA:=${TESSERA_SHARED:-../shared}/data/tinyshakespeare.txt}"
VOCAB=320 # of model_name=tessera-byte
threads=$(nproc)
export OMP_NUM_THREADS="$threads"
: "${ENGINE_KEYS:=engine=cpu threads=$threads}" "${TORCH_DEVICE:=cpu}"
out=$BUILD/bench
mkdir -p "$out"

[ -s "$DATA" ] || { echo "bench: DATA=$DATA is no file; name a text of some hundred kilobytes" >&2; exit 2; }
[ -x "$BUILD/tessera" ] || { echo "bench: $BUILD/tessera is not there; run make" >&2; exit 2; }
for tool in measure matmul_peak; do
    if [ ! -x "$out/$tool" ] || [ bench/$tool.c -nt "$out/$tool" ]; then
        "${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O2 -fopenmp -o "$out/$tool" bench/$tool.c -ldnnl || exit 1
    fi
done

# measure_tessera EVAL_FRACTION: STEPS steps into $out/tessera.json.
measure_tessera() {
    rm -rf "$out/run"
    eval_keys=
    [ "$1" = 0 ] || eval_keys="eval_fraction=$1 eval_interval=$STEPS"
    # shellcheck disable=SC2086
    "$out/measure" "$out/tessera.log" "$BUILD/tessera" train configs/base.yml model_name=tessera-byte \
        override_model_config=true base_num_decoder_layers="$LAYERS" base_emb_dim="$EMB" base_mlp_dim="$FFN" \
        base_num_query_heads="$HEADS" base_num_kv_heads="$KV" head_dim=$((EMB / HEADS)) dataset_type=text \
        dataset_path="$DATA" tokenizer_type=byte num_epoch=1000 dtype="$DTYPE" steps="$STEPS" \
        per_device_batch_size="$BATCH" max_target_length="$SEQ" learning_rate="$RATE" remat_policy="${REMAT:-none}" \
        $ENGINE_KEYS run_name=run base_output_directory="$out" log_config=false \
        enable_checkpointing=false $eval_keys >"$out/tessera.json" || {
        tail -n 15 "$out/tessera.log" >&2
        echo "bench: tessera did not finish; $out/tessera.log has its output" >&2
        return 1
    }
}

# measure_torch EVAL_FRACTION: the same in PyTorch into $out/torch.json; the file is absent when
# there is no PyTorch.
measure_torch() {
    rm -f "$out/torch.json"
    [ -n "${BENCH_PYTHON-}" ] || return 0
    "$out/measure" "$out/torch.log" "$BENCH_PYTHON" bench/peer_torch.py --data "$DATA" --layers "$LAYERS" \
        --emb "$EMB" --heads "$HEADS" --kv "$KV" --ffn "$FFN" --vocab $VOCAB --batch "$BATCH" --seq "$SEQ" \
        --steps "$STEPS" --dtype "$DTYPE" --learning-rate "$RATE" --eval-fraction "$1" --threads "$threads" \
        --device "$TORCH_DEVICE" ${BENCH_COMPILE:+--compile} >"$out/torch.part" || {
        tail -n 15 "$out/torch.log" >&2
        echo "bench: the PyTorch side did not finish; $out/torch.log has its output" >&2
        return 1
    }
    mv "$out/torch.part" "$out/torch.json"
}

# number FILE NAME: a number of a flat JSON object; nothing when the file or the number is missing.
number() {
    [ ! -s "$1" ] || sed -n "s/.*\"$2\": \([0-9][0-9.e+-]*\).*/\1/p" "$1"
}

# FLOPs of a step by MaxText's formula (causal attention counted half), as the step line has it.
flops_a_step() {
    awk -v B="$BATCH" -v S="$SEQ" -v E="$EMB" -v M="$FFN" -v H="$HEADS" -v K="$KV" -v L="$LAYERS" -v V=$VOCAB 'BEGIN {
        D = E / H
        layer = 2*B*S*M*E*2 + 2*B*S*M*E + 2*B*S*E*(H + 2*K)*D + 2*B*S*E*H*D + 2*B*S*S*H*D
        printf "%.6g", 3 * (L * layer + 2*B*S*E*V) }'
}
