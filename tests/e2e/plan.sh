#!/bin/sh
# plan.sh: every preset on every kind of device, what is said to people and to programs, each way to ask for what cannot
# be, and libtpu's own peak beside the planned one where it is installed. Times are shown, not judged.
. "$(dirname "$0")/../cli_help.sh"

# ---- presets × devices -----------------------------------------------------------------------------
# planned WORD…: either end is a result; the time is shown.
planned() {
    start=$(date +%s%N)
    "$TESSERA" plan "$@" >"$out" 2>"$err" </dev/null
    got=$?
    ms=$((($(date +%s%N) - start) / 1000000))
    [ $got = 0 ] || [ $got = 1 ] || fail "exit $got: tessera plan $*" "$(show)"
}
slowest=0
for preset in "$root"/configs/models/*.yml; do
    model=$(basename "$preset" .yml)
    for devices in v5e:16x16 v5p:4x4x4 v6e:16x16 v6e-16 tpu7x:4x4x4 h100:256 h200:8 b200:64 cpu:16; do
        planned base.yml model_name="$model" max_target_length=2048 per_device_batch_size=1 --devices $devices --json
        [ $ms -gt $slowest ] && slowest=$ms
        says out '"wire_bytes": {"'
        [ $got = 0 ] && says out '"fits": true' || says out '"fits": false'
    done
done
planned base.yml model_name=llama3-70b max_target_length=4096 per_device_batch_size=0.125 ici_tensor_parallelism=8 --devices v6e:16x16
echo "slowest of presets and devices $slowest ms; llama3-70b on v6e:16x16 $ms ms"
code_is 0 $got 'llama3-70b on 256'

# ---- for people ------------------------------------------------------------------------------------
small='base.yml model_name=llama3-8b max_target_length=4096 collective_matmul=plain'
expect 0 plan $small per_device_batch_size=0.25 ici_tensor_parallelism=4 --devices v6e:4x4
says out 'v6e:4x4: 16 devices, mesh data=1, fsdp=4, tensor=4; 4 rows of 4096 tokens a step'
says out 'parameters: 8.030 billion, of them trained 8.030 billion'
for row in parameters moments gradients activations temporary peak capacity full minimal none compute memory wire; do
    says_like out "^  $row +[0-9.]+ (KiB|MiB|GiB|ms|s)"
done
for row in 'fsdp +all_gather' 'fsdp +reduce_scatter' 'tensor +all_gather' 'tensor +reduce_scatter'; do
    says_like out "^  $row +[0-9]+ × +[0-9.]+ [KMG]iB +[0-9.]+ m?s$"
done
says_like out '^  bound by (compute|memory|wire); model FLOP utilisation at most [0-9.]+ %$'
says out 'a checkpoint has 89.75 GiB'
says_like out '^fits: [0-9.]+ GiB of 31.24 GiB a device$'
[ -s "$err" ] && fail 'something on standard error' "$(show)"
expect 1 plan $small per_device_batch_size=12 remat_policy=none --devices v6e:4x4
says_like out '^does not fit: [0-9.]+ GiB of 31.24 GiB a device$'
says_like out '^  fits with [a-z_]+=[^ ]+.*  \([0-9.]+ GiB\)$'
# The advice, typed, fits.
keys=$(sed -n 's/^  fits with \(.*\)  (.*/\1/p' "$out" | head -n 1)
expect 0 plan $small per_device_batch_size=12 remat_policy=none --devices v6e:4x4 $keys

# ---- for programs ----------------------------------------------------------------------------------
expect 0 plan $small per_device_batch_size=0.25 ici_tensor_parallelism=4 --devices v6e:4x4 --json --quiet
[ "$(wc -l <"$out")" = 1 ] || fail 'the JSON is not one line'
for key in topology devices mesh parameters per_device moments gradients activations temporary peak capacity remat_policy \
    remat wire_bytes flops model_flops memory_bytes bound_seconds compute memory wire bound mfu_bound checkpoint_bytes \
    host_bytes_at_save fits advice; do
    says out "\"$key\": "
done
says_like out '"wire_bytes": \{"fsdp": \{"all_reduce": [0-9]+, .*"tensor": \{"all_reduce": '
says out '"checkpoint_bytes": 96363134976,'
says out '"fits": true, "advice": []}'
expect 1 plan $small per_device_batch_size=12 --devices v6e:4x4 --json
says_like out '"fits": false, "advice": \[\{"keys": "'
says err 'does not fit'

# ---- the cpu's virtual devices ---------------------------------------------------------------------
expect 0 plan base.yml $tiny engine=cpu cpu_devices=4 ici_tensor_parallelism=2 per_device_batch_size=1 vocab_size=260 \
    base_num_kv_heads=2
says out 'cpu:4: 4 devices, mesh data=1, fsdp=2, tensor=2; 4 rows of 16 tokens a step'
says_like out '^  process +[0-9.]+ MiB  \(all devices\)$'
expect 0 plan base.yml $tiny --devices cpu:4 --json
says_like out '"process_bytes": [1-9][0-9]+,'
expect 0 plan base.yml $tiny shard_mode=auto engine=xla --devices v6e:2x2

# ---- checkpoints are as long as was said --------------------------------------------------------------
for frozen in '' 'frozen_parameters=[*embed_tokens*]'; do
    run=saved${frozen:+_frozen}
    train "$run" engine=cpu steps=1 checkpoint_period=1 $frozen
    size=$(cat "$(run_folder "$run")"/checkpoints/1/*.safetensors | wc -c)
    expect 0 plan base.yml $tiny engine=cpu $frozen --json
    said=$(sed -n 's/.*"checkpoint_bytes": \([0-9]*\),.*/\1/p' "$out")
    [ "$size" -ge "$said" ] && [ "$size" -le $((said + 16384)) ] || fail "$run: $size bytes of tensors, planned $said"
done

# ---- what cannot be --------------------------------------------------------------------------------
for words in 'base.yml --devices v6e:3x3' 'base.yml --devices v7:4' 'base.yml --devices h100' 'base.yml --devices' \
    'base.yml compile_topology=v6e:4x4 --devices v6e:4x4' 'base.yml ici_tensor_parallelism=6 --devices v6e:4x4' \
    'base.yml per_device_batch_size=0.3 --devices h100:16' 'base.yml stepz=4 --devices cpu:1' \
    'nowhere.yml --devices cpu:1' 'base.yml --json=yes --devices cpu:1'; do
    expect 2 plan $words
    [ -s "$out" ] && fail "results where there are none: $words" "$(show)"
    [ -s "$err" ] || fail "not a word about $words"
done
expect 2 plan base.yml --devices v6f:4x4
says err 'did you mean v6e?'
expect 0 plan --help
says out '  tessera plan base.yml model_name=llama3-8b'
M_COMPILE_TOPOLOGY=v6e:2x2 expect 0 plan base.yml $tiny
says out 'v6e:2x2: 4 devices'

# ---- a compiler's own peak -------------------------------------------------------------------------
model='base.yml base_emb_dim=1024 base_num_query_heads=8 base_num_kv_heads=4 head_dim=128 base_mlp_dim=4096
    base_num_decoder_layers=4 vocab_size=16384 max_target_length=1024 per_device_batch_size=2 ici_tensor_parallelism=2
    collective_matmul=plain log_config=false compile_topology=v6e:2x2'
peak() { sed -n "s/.*\"$1\": \([0-9]*\), \"capacity.*/\1/p" "$out"; }
expect 0 plan $model --json
mine=$(peak peak)
"$TESSERA" compile $model --json >"$out" 2>"$err" </dev/null
code=$?
if [ $code = 4 ] && grep -q 'no tpu plugin is installed' "$err"; then
    echo 'SKIP  no tpu plugin: the planned peak beside the compiler'"'"'s'
else
    code_is 0 $code 'compile for v6e:2x2'
    theirs=$(peak peak_bytes)
    echo "peak planned $mine, of libtpu $theirs"
    awk -v a="$mine" -v b="$theirs" 'BEGIN { exit !(b > 0 && a > 0.85 * b && a < 1.15 * b) }' ||
        fail "planned $mine bytes, libtpu's peak is $theirs"
fi
finish
