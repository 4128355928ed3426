#!/bin/sh
# profile.sh: how much of a training step the CPU engine's timeline explains, and what is dearest in it, for two
# models: tessera-byte, and six layers of SmolLM2-135M's width. `make bench-profile` calls it.
#
# The share is the sum of all ops' times by the step's wall time, from the request for its batch to its results;
# median of STEPS=5 steps behind two. The traces stay in $BUILD/bench/profile.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
STEPS=${STEPS:-5}
out=$BUILD/bench/profile
rm -rf "$out"

# profile NAME WORD…
profile() {
    run=$1
    shift
    "$BUILD/tessera" train base.yml run_name="$run" base_output_directory="$out" engine=cpu profiler=trace \
        skip_first_n_steps_for_profiler=2 profiler_steps="$STEPS" steps=$((STEPS + 2)) log_config=false \
        enable_checkpointing=false remat_policy=none "$@" |
        sed -n "s/^profile: /$run: /p; s/^profile of steps/$run: steps/p"
}

profile tessera-byte model_name=tessera-byte dtype=float32 per_device_batch_size=16 max_target_length=256
profile smollm-6 base_emb_dim=576 base_num_query_heads=9 base_num_kv_heads=3 head_dim=64 base_mlp_dim=1536 \
    base_num_decoder_layers=6 vocab_size=49152 logits_via_embedding=true per_device_batch_size=2 \
    max_target_length=256 dtype=bfloat16
