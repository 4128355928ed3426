#!/bin/sh
# gpu.sh [check | bench]: the graph on an NVIDIA GPU through XLA: is it right, and how fast is it. Without a word both.
#
# check  the op table (forward and gradient, f32 and bf16), the published models' golden outputs, and 50
#        training steps beside the cpu engine, all within the bounds that hold for the CPU plugin
# bench  tokens a second beside PyTorch + transformers on the same GPU in the same run, where BENCH_PYTHON names a
#        python that has them; shape by the variables of common.sh
#
# The plugin is `plugin=cuda` where tessera finds one (TESSERA_PLUGIN_PATH, `tessera plugins install cuda`,
# $VIRTUAL_ENV), else a jax-cuda package of BENCH_PYTHON or python3. NVIDIA's own libraries come from the same
# environment or the system. TESSERA_GPU_PLUGIN=NAME|PATH takes another plugin: with cpu the script is
# rehearsed without a GPU. Exit 4 where there is no GPU or no plugin, 1 where something is wrong.
set -u
cd "$(dirname "$0")/.." || exit 1
what=${1:-all}
case $what in check | bench | all) ;; *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
# A GPU is idle with the shapes of common.sh.
: "${LAYERS:=8}" "${EMB:=1024}" "${HEADS:=16}" "${KV:=8}" "${FFN:=2816}" "${BATCH:=16}" "${SEQ:=1024}" "${DTYPE:=bfloat16}"
: "${STEPS:=30}" "${RATE:=3e-4}" "${BUILD:=build}" "${TESSERA:=$BUILD/tessera}" "${TESSERA_SHARED:=../shared}"
work=$(mktemp -d "${TMPDIR:-/tmp}/tessera-gpu.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
bad=0

# ---- the plugin ----------------------------------------------------------------------------------
python=${BENCH_PYTHON:-python3}
if [ -z "${VIRTUAL_ENV-}" ] && prefix=$("$python" -c 'import sys; print(sys.prefix)' 2>/dev/null); then
    export VIRTUAL_ENV="$prefix" # NVIDIA's wheels, torch's among them, lie there
fi
plugin=${TESSERA_GPU_PLUGIN:-}
if [ -z "$plugin" ]; then
    plugin=cuda
    if ! "$TESSERA" plugins list --json | grep -q '"name": "cuda"'; then
        plugin=$("$python" - 2>/dev/null <<'END'
import glob, os, sys
for folder in sys.path:
    found = sorted(glob.glob(os.path.join(folder, "jax_plugins", "xla_cuda*", "xla_cuda_plugin.so")))
    if found:
        print(found[-1])
        break
END
        )
        plugin=${plugin:-cuda}
    fi
fi
engine="engine=xla plugin=$plugin"

# small WORD…: a small model on text; the smallest run that a plugin can do is its first step.
text=$TESSERA_SHARED/data/tinyshakespeare.txt
[ -e "$text" ] || text=README.md
small() {
    "$TESSERA" train base.yml base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16 base_mlp_dim=160 \
        base_num_decoder_layers=3 vocab_size=259 max_target_length=256 per_device_batch_size=4 learning_rate=1e-3 \
        dataset_type=text dataset_path="$text" num_epoch=100 dtype=float32 enable_checkpointing=false log_config=false \
        base_output_directory="$work" "$@" >"$work/out" 2>&1
}
# shellcheck disable=SC2086
small $engine run_name=first steps=1
code=$?
if [ $code = 4 ]; then
    echo "SKIP  no program can run on plugin $plugin here: $(tail -n 1 "$work/out")"
    exit 4
elif [ $code != 0 ]; then
    tail -n 15 "$work/out"
    echo "FAIL  the first step on plugin $plugin, exit code $code"
    exit 1
fi
grep -m 1 '^engine' "$work/out"

# ---- is it right ---------------------------------------------------------------------------------
verdict() { # CODE NAME LOG
    if [ "$1" = 0 ]; then
        echo "ok    $2"
    else
        tail -n 30 "$3"
        echo "FAIL  $2"
        bad=1
    fi
}
losses() { sed -n 's/^{"step": \([0-9]*\),.*"learning\/loss": \([^,]*\),.*/\1 \2/p' "$work/$1/metrics.jsonl"; }

check() {
    if [ -x "$BUILD/tests/op/test_ops" ]; then
        "$BUILD/tests/op/test_ops" xla "$plugin" >"$work/log" 2>&1
        verdict $? "the op table: $(sed -n 's/^\([0-9]* lines, .*\)/\1/p' "$work/log")" "$work/log"
    else
        echo "SKIP  the op table: $BUILD/tests/op/test_ops is not built (make tests)"
    fi
    for name in tiny-llama3 tiny-llama31; do
        folder=$TESSERA_SHARED/golden/$name
        [ -e "$folder/golden.safetensors" ] || { echo "SKIP  $name: no $folder/golden.safetensors"; continue; }
        # shellcheck disable=SC2086
        "$TESSERA" parity "$folder" --golden "$folder/golden.safetensors" $engine >"$work/log" 2>&1
        verdict $? "$name: $(tail -n 1 "$work/log")" "$work/log"
    done
    # shellcheck disable=SC2086
    small engine=cpu run_name=cpu steps=50 && small $engine run_name=gpu steps=50
    code=$?
    losses cpu >"$work/cpu.losses"
    losses gpu >"$work/gpu.losses"
    paste -d ' ' "$work/cpu.losses" "$work/gpu.losses" | awk '
        $1 != $3 || NF != 4 { exit 1 }
        { gap = ($2 > $4 ? $2 - $4 : $4 - $2) / $2; if (gap > most) most = gap; n++ }
        END { printf "largest gap %.1e of the loss, bound 1e-5\n", most; exit n != 50 || most > 1e-5 }' >"$work/log"
    steps=$?
    [ $code = 0 ] || { cp "$work/out" "$work/log"; steps=1; }
    verdict $steps "50 training steps beside the cpu engine: $(tail -n 1 "$work/log")" "$work/log"
}

# ---- how fast is it ------------------------------------------------------------------------------
bench() {
    ENGINE_KEYS=$engine TORCH_DEVICE=${TORCH_DEVICE:-cuda}
    . bench/common.sh
    echo
    echo "$LAYERS layers x $EMB, $HEADS heads, $KV kv, ffn $FFN; $BATCH x $SEQ, $DTYPE; $STEPS steps, plugin $plugin"
    measure_tessera 0 || return 1
    measure_torch 0 || return 1
    # The numbers of a side: seconds a step, seconds to the first.
    side() { echo "$(number "$1" median_step_s) $(number "$1" first_step_s)"; }
    awk -v flops="$(flops_a_step)" -v tokens=$((BATCH * SEQ)) -v json="$out/gpu.json" \
        -v ours="$(side "$out/tessera.json")" -v theirs="$(side "$out/torch.json")" '
        function row(what, format, a, b) {
            printf "%-28s %14s", what, sprintf(format, a)
            if (both) printf " %14s %10.2f", sprintf(format, b), a / b
            printf "\n"
        }
        BEGIN {
            if (split(ours, a, " ") != 2) { print "bench: the log of tessera has no step lines" >"/dev/stderr"; exit 1 }
            both = split(theirs, b, " ") == 2
            if (!both) b[1] = b[2] = 1
            printf "%-28s %14s%s\n", "", "Tessera", both ? sprintf(" %14s %10s", "PyTorch", "ratio") : ""
            row("tokens/s", "%.0f", tokens / a[1], tokens / b[1])
            row("TFLOP/s", "%.2f", flops / a[1] / 1e12, flops / b[1] / 1e12)
            row("start to first step, s", "%.2f", a[2], b[2])
            if (!both) print "No ratio: BENCH_PYTHON names no python with torch and transformers."
            printf "{\"flops_per_step\": %g, \"tokens_per_step\": %d, \"tessera_step_s\": %g", flops, tokens, a[1] >json
            if (both) printf ", \"torch_step_s\": %g, \"speed_ratio\": %g", b[1], b[1] / a[1] >json
            print "}" >json
        }' && echo "$out/gpu.json has the same as JSON."
}

case $what in check | all) check ;; esac
case $what in bench | all) bench || bad=1 ;; esac
exit $bad
