#!/bin/sh
# bad_model.sh: a model folder that is cut anywhere, malformed, incomplete or unlike its config.json is
# refused by generate, parity and train with exit 3 and a message that names the file; never a signal.
. "$(dirname "$0")/../cli_help.sh"
need_shared golden/tiny-llama3/model.safetensors
published=$shared/golden/tiny-llama3
golden=$published/golden.safetensors
model=$work/model
mkdir "$model"
cp "$published/config.json" "$model/"
size=$(($(wc -c <"$published/model.safetensors")))

# refused WHAT: both commands name the file and end with 3.
refused() {
    what=$1
    "$TESSERA" generate --model "$model" --ids 1,2 --max-new 1 >"$out" 2>"$err" </dev/null
    code=$?
    [ $code = 3 ] || { fail "generate, $what: exit $code instead of 3"; show; }
    grep -q "$model" "$err" || { fail "generate, $what: the message does not name the model"; show; }
    [ -s "$out" ] && fail "generate, $what: printed something"
    [ "${2-}" = once ] && return
    "$TESSERA" parity "$model" --golden "$golden" >"$out" 2>"$err" </dev/null
    code=$?
    [ $code = 3 ] || { fail "parity, $what: exit $code instead of 3"; show; }
}

# ---- cut at 100 places: dense over the header, then over the data --------------------------------
header=$(($(od -An -tu8 -N8 "$published/model.safetensors")))
i=0
while [ $i -lt 100 ]; do
    if [ $i -lt 10 ]; then cut=$i
    elif [ $i -lt 50 ]; then cut=$((8 + header * (i - 10) / 40))
    else cut=$((8 + header + (size - 8 - header) * (i - 50) / 50)); fi
    [ $i = 99 ] && cut=$((size - 1))
    head -c $cut "$published/model.safetensors" >"$model/model.safetensors"
    refused "cut at $cut of $size bytes"
    i=$((i + 1))
done
cp "$published/model.safetensors" "$model/model.safetensors"
expect 0 generate --model "$model" --ids 1,2 --max-new 1

# ---- headers with one defect each ----------------------------------------------------------------
dd if="$published/model.safetensors" bs=1 skip=8 count=$header 2>/dev/null >"$work/header"
tail -c +$((9 + header)) "$published/model.safetensors" >"$work/data"
# little N: N as eight little-endian bytes.
little() {
    n=$1 k=0
    while [ $k -lt 8 ]; do
        printf "\\$(printf %03o $((n % 256)))"
        n=$((n / 256)) k=$((k + 1))
    done
}
# assemble: $work/new (a header) and the data, as a file.
assemble() {
    { little $(($(wc -c <"$work/new"))); cat "$work/new" "$work/data"; } >"$model/model.safetensors"
}
# planted WHAT SED: the header changed by a sed script.
planted() {
    sed "$2" "$work/header" >"$work/new"
    cmp -s "$work/header" "$work/new" && fail "$1: the defect was not planted"
    assemble
    refused "$1" once
}
cp "$work/header" "$work/new"
assemble
cmp -s "$published/model.safetensors" "$model/model.safetensors" ||
    fail 'the header could not be taken apart'
planted 'not JSON' 's/^{/[/'
planted 'leading blank' 's/^/ /'
planted 'unknown dtype' 's/"F32"/"F31"/'
planted 'another size of dtype' 's/"F32"/"F64"/'
planted 'negative dimension' 's/"shape":\[\([0-9]\)/"shape":[-\1/'
planted 'fractional dimension' 's/"shape":\[\([0-9]*\)/"shape":[\1.5/'
planted 'text for a dimension' 's/"shape":\[\([0-9]*\)/"shape":["\1"/'
planted 'product that overflows' 's/"shape":\[[0-9]*/"shape":[9223372036854775807,9223372036854775807/'
planted 'another shape' 's/"shape":\[\([0-9]\)/"shape":[1\1/'
planted 'one offset' 's/"data_offsets":\[\([0-9]*\),[0-9]*\]/"data_offsets":[\1]/'
planted 'three offsets' 's/"data_offsets":\[\([0-9]*\),/"data_offsets":[\1,\1,/'
planted 'offsets backwards' 's/"data_offsets":\[\([0-9]*\),\([0-9]*\)\]/"data_offsets":[\2,\1]/'
planted 'hole' 's/"data_offsets":\[0,/"data_offsets":[4,/'
planted 'huge offset' 's/"data_offsets":\[0,[0-9]*\]/"data_offsets":[0,9223372036854775808]/'
planted 'unknown inner field' 's/"dtype"/"extra":1,"dtype"/'
planted 'missing dtype' 's/"dtype":"F32",//'
planted 'missing shape' 's/"shape":\[[0-9,]*\],//'
planted 'duplicate name' 's/^{\("[^_"][^"]*"\):\({[^}]*}\)/{\1:\2,\1:\2/;s/^{\("__metadata__":{[^}]*},\)\("[^"]*"\):\({[^}]*}\)/{\1\2:\3,\2:\3/'
planted 'metadata that is no text' 's/^{/{"__metadata__":{"a":1},/;s/"__metadata__":{"format"[^}]*},//'
planted 'empty name' 's/"model.norm.weight"/""/'
planted 'NUL in a name' 's/"model.norm.weight"/"model.norm\\u0000.weight"/'
planted 'not UTF-8' "s/\"model.norm.weight\"/\"model.norm$(printf '\377').weight\"/"
planted 'renamed tensor' 's/"model.norm.weight"/"model.norm.wait"/'
planted 'deep nesting' 's/"shape":\[\([0-9]*\)/"shape":[[[[[[[[[\1]]]]]]]]/'
for n in 0 1 100000001 $((size - 7)) 9223372036854775807; do
    { little $n; cat "$work/header" "$work/data"; } >"$model/model.safetensors"
    refused "header length $n" once
done
{ cat "$published/model.safetensors"; echo; } >"$model/model.safetensors"
refused 'a byte too many' once
rm "$model/model.safetensors"
mkdir "$model/model.safetensors"
"$TESSERA" generate --model "$model" --ids 1 >"$out" 2>"$err" </dev/null
code=$?
[ $code = 2 ] || [ $code = 3 ] || fail "a folder for a file: exit $code" "$(show)"
rmdir "$model/model.safetensors"
"$TESSERA" generate --model "$model" --ids 1 >"$out" 2>"$err" </dev/null
code=$?
[ $code = 2 ] || [ $code = 3 ] || fail "no weights at all: exit $code" "$(show)"
says err safetensors

# ---- config.json ---------------------------------------------------------------------------------
cp "$published/model.safetensors" "$model/model.safetensors"
config() { # WHAT SED
    sed "$2" "$published/config.json" >"$model/config.json"
    cmp -s "$published/config.json" "$model/config.json" && fail "$1: the defect was not planted"
    refused "$1" once
}
config 'another width' 's/"hidden_size": *[0-9]*/"hidden_size": 32/'
config 'more layers' 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 3/'
config 'fewer layers' 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 1/'
config 'another vocabulary' 's/"vocab_size": *[0-9]*/"vocab_size": 500/'
config 'negative vocabulary' 's/"vocab_size": *[0-9]*/"vocab_size": -5/'
config 'no heads' 's/"num_attention_heads": *[0-9]*/"num_attention_heads": 0/'
config 'heads that do not divide' 's/"num_key_value_heads": *[0-9]*/"num_key_value_heads": 3/'
config 'text for a number' 's/"hidden_size": *[0-9]*/"hidden_size": "wide"/'
config 'huge numbers' 's/"hidden_size": *[0-9]*/"hidden_size": 9223372036854775807/'
config 'another architecture' 's/"model_type": *"[a-z0-9]*"/"model_type": "mamba"/;s/LlamaForCausalLM/MambaForCausalLM/'
config 'not JSON' 's/{/(/'
printf '\000\001\002' >"$model/config.json"
refused 'binary config.json' once
cp "$published/config.json" "$model/config.json"

# ---- shards --------------------------------------------------------------------------------------
mv "$model/model.safetensors" "$model/model-00001-of-00002.safetensors"
names=$(tr ',' '\n' <"$work/header" | sed -n 's/^{*"\([a-z][^"]*\)":{.*/\1/p')
[ "$(echo "$names" | wc -l)" -gt 10 ] || fail 'names of tensors could not be read'
index() { # SHARD of all tensors
    echo "$names" | awk -v s="$1" 'BEGIN { printf "{\"metadata\": {}, \"weight_map\": {" }
        { printf "%s\"%s\": \"%s\"", (NR > 1 ? ", " : ""), $0, s } END { print "}}" }' >"$model/model.safetensors.index.json"
}
index model-00001-of-00002.safetensors
expect 0 generate --model "$model" --ids 1,2 --max-new 1
index model-00002-of-00002.safetensors
expect 2 generate --model "$model" --ids 1,2 --max-new 1 # a path that is missing
says err 'names a shard that is missing'
says err 'model-00002-of-00002.safetensors'
index ../model/model-00001-of-00002.safetensors
refused 'a shard outside the folder' once
echo '{"weight_map": {"model.norm.weight": 3}}' >"$model/model.safetensors.index.json"
refused 'an index that is no map' once

# ---- a checkpoint whose manifest is cut ----------------------------------------------------------
train run
step=$work/runs/run/checkpoints/4
size=$(($(wc -c <"$step/manifest.json")))
cp "$step/manifest.json" "$work/manifest"
for cut in 0 1 $((size / 3)) $((size / 2)) $((size - 2)); do
    head -c $cut "$work/manifest" >"$step/manifest.json"
    "$TESSERA" generate --model "$step" --ids 1 --max-new 1 >"$out" 2>"$err" </dev/null
    code_is 3 $? "generate from a manifest cut at $cut"
    says err "$step"
done
finish
