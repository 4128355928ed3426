#!/bin/sh
# llama.sh: parity with the transformers library on Llamas of random sizes, tied and not, with scaled
# rope and without. BENCH_PYTHON names a python with torch and transformers; SEEDS which models.
set -u
if [ -z "${BENCH_PYTHON-}" ]; then
    echo "BENCH_PYTHON names no python with torch and transformers"
    exit 77
fi
bad=0
for seed in ${SEEDS:-1 2 3 4 5 6}; do
    model=$TMPDIR/llama-$seed
    "$BENCH_PYTHON" tests/peers/llama.py "$model" "$seed" || exit 1
    if ! "$TESSERA" parity "$model" --golden "$model/golden.safetensors" dtype=float32 >"$TMPDIR/report" 2>&1; then
        echo "seed $seed: $(tr -d '\n' <"$model/config.json")"
        cat "$TMPDIR/report"
        bad=1
    fi
done
exit $bad
