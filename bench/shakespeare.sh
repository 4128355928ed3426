#!/bin/sh
# shakespeare.sh: the whole small run, both sides in one go: a 4-layer, 256-wide byte model on
# tinyshakespeare, f32, 590 steps of 16 x 256, AdamW 2e-3 with the cosine schedule, then the loss on
# the last 10 % of the file. Wall time counts from the start of the process to its end, evaluation
# included. Needs BENCH_PYTHON for the PyTorch side; without it there is no ratio.
set -eu
cd "$(dirname "$0")/.."
STEPS=${STEPS:-590}
. bench/common.sh

echo "$STEPS steps of $BATCH x $SEQ on $DATA, $DTYPE, $threads threads; held out: the last tenth"
measure_tessera 0.1
measure_torch 0.1
awk -v json="$out/shakespeare.json" -v steps="$STEPS" \
    -v ours="$(number "$out/tessera.json" wall_s) $(number "$out/tessera.json" eval_loss)" \
    -v theirs="$(number "$out/torch.json" wall_s) $(number "$out/torch.json" eval_loss)" 'BEGIN {
        if (split(ours, a, " ") != 2) { print "bench: tessera printed no evaluation" >"/dev/stderr"; exit 1 }
        both = split(theirs, b, " ") == 2
        printf "Tessera  %8.1f s   held-out loss %.4f nats a byte\n", a[1], a[2]
        printf "{\"steps\": %d, \"tessera\": {\"wall_s\": %g, \"eval_loss\": %g}", steps, a[1], a[2] >json
        if (both) {
            printf "PyTorch  %8.1f s   held-out loss %.4f nats a byte\n", b[1], b[2]
            printf "Tessera takes %.3f of the time of PyTorch.\n", a[1] / b[1]
            printf ", \"torch\": {\"wall_s\": %g, \"eval_loss\": %g}, \"time_ratio\": %g", b[1], b[2], a[1] / b[1] >json
        } else print "No ratio: BENCH_PYTHON names no python with torch and transformers."
        print "}" >json
    }'
