#!/bin/sh
# train.sh: training speed of one shape, beside PyTorch + transformers in the same run when
# BENCH_PYTHON names a python that has them. `make bench` calls it; common.sh lists the variables.
#
# Prints a table, and the same as JSON into $BUILD/bench/train.json: tokens a second (median of the
# steps after warm-up), FLOP/s against the matrix product of oneDNN on this machine, peak memory,
# seconds from start to the first finished step. A ratio only when both sides ran.
set -eu
cd "$(dirname "$0")/.."
STEPS=${STEPS:-40}
. bench/common.sh

echo "$LAYERS layers x $EMB, $HEADS heads, $KV kv, ffn $FFN; $BATCH x $SEQ, $DTYPE; $STEPS steps, $threads threads"
"$out/matmul_peak" >"$out/peak.json"
measure_tessera 0
measure_torch 0

case $DTYPE in bfloat16) peak=bf16_flops ;; *) peak=f32_flops ;; esac
peak=$(number "$out/peak.json" $peak)
shape="\"layers\": $LAYERS, \"emb\": $EMB, \"heads\": $HEADS, \"kv\": $KV, \"ffn\": $FFN, \"batch\": $BATCH"
shape="$shape, \"seq\": $SEQ, \"dtype\": \"$DTYPE\", \"steps\": $STEPS, \"threads\": $threads"
# The three numbers of a side: seconds a step, seconds to the first, bytes.
side() { echo "$(number "$1" median_step_s) $(number "$1" first_step_s) $(number "$1" peak_rss_bytes)"; }
awk -v flops="$(flops_a_step)" -v tokens=$((BATCH * SEQ)) -v peak="${peak:-0}" -v json="$out/train.json" \
    -v shape="$shape" -v threads="$threads" \
    -v ours="$(side "$out/tessera.json")" -v theirs="$(side "$out/torch.json")" '
    # The ratio is ours by theirs; a side that did not run has none.
    function row(what, format, a, b) {
        printf "%-28s %14s", what, sprintf(format, a)
        if (both) printf " %14s %10.2f", sprintf(format, b), a / b
        printf "\n"
    }
    function object(name, x) {
        return sprintf("\"%s\": {\"median_step_s\": %g, \"tokens_per_s\": %g, \"flops\": %g, ", name, x[1],
            tokens / x[1], flops / x[1]) sprintf("\"first_step_s\": %g, \"peak_rss_bytes\": %d}", x[2], x[3])
    }
    function per(amount, seconds) { return seconds > 0 ? amount / seconds : 0 }
    BEGIN {
        if (split(ours, a, " ") != 3) { print "bench: the log of tessera has no step lines" >"/dev/stderr"; exit 1 }
        both = split(theirs, b, " ") == 3
        printf "%-28s %14s%s\n", "", "Tessera", both ? sprintf(" %14s %10s", "PyTorch", "ratio") : ""
        row("tokens/s", "%.0f", per(tokens, a[1]), per(tokens, b[1]))
        row("GFLOP/s", "%.1f", per(flops / 1e9, a[1]), per(flops / 1e9, b[1]))
        if (peak > 0)
            row("of oneDNN matmul peak", "%.1f %%", per(100 * flops / peak, a[1]), per(100 * flops / peak, b[1]))
        row("start to first step, s", "%.2f", a[2], b[2])
        row("peak memory, MB", "%.0f", a[3] / 1e6, b[3] / 1e6)
        if (peak > 0) printf "oneDNN matmul peak: %.1f GFLOP/s (%s threads)\n", peak / 1e9, threads
        else print "oneDNN has no fast matmul of this type here: no share of a peak"
        if (!both) print "No ratio: BENCH_PYTHON names no python with torch and transformers."
        printf "{%s, \"flops_per_step\": %g, \"matmul_peak_flops\": %s,\n %s", shape, flops,
            (peak > 0 ? peak : "null"), object("tessera", a) >json
        if (both) printf ",\n %s,\n \"speed_ratio\": %g", object("torch", b), b[1] / a[1] >json
        print "}" >json
    }'
echo "$out/train.json has the same as JSON."
