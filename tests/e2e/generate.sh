#!/bin/sh
# generate.sh: text and ids from a model: the reference's greedy ids, samples that a seed decides, and
# prompts that are bad, empty or longer than the model was made for.
. "$(dirname "$0")/../cli_help.sh"

# ---- published models ----------------------------------------------------------------------------
# i64 NAME: the values of a safetensors tensor of I64, comma-separated.
i64() {
    awk_name=$1
    n=$(($(od -An -tu8 -N8 "$golden")))
    range=$(dd if="$golden" bs=1 skip=8 count=$n 2>/dev/null | tr '{' '\n' | grep -A1 "\"$awk_name\":\$" | tail -n 1 |
        sed 's/.*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/')
    begin=${range% *} end=${range#* }
    od -An -v -td8 -w8 -j $((8 + n + begin)) -N $((end - begin)) "$golden" | tr -d ' ' | paste -s -d, -
}
found=0
for name in tiny-llama3 tiny-llama31; do
    folder=$shared/golden/$name golden=$folder/golden.safetensors
    [ -e "$golden" ] || continue
    found=1
    ids=$(i64 greedy_ids)
    prompt_ids=$(i64 greedy_prompt)
    [ -n "$prompt_ids" ] || prompt_ids=$(i64 input_ids)
    count=$(echo "$ids" | tr ',' '\n' | wc -l)
    echo "$name: $count greedy ids"
    # greedy_ids begins with its prompt, of which the first ids of the batch are a part.
    n_prompt=$(echo "$prompt_ids" | tr ',' '\n' | wc -l)
    shared_ids=0
    while [ $shared_ids -lt "$n_prompt" ] && [ $shared_ids -lt "$count" ] &&
        [ "$(echo "$ids" | cut -d, -f$((shared_ids + 1)))" = "$(echo "$prompt_ids" | cut -d, -f$((shared_ids + 1)))" ]; do
        shared_ids=$((shared_ids + 1))
    done
    [ $shared_ids -gt 0 ] && [ $shared_ids -lt "$count" ] || { fail "$name: no prompt in greedy_ids ($ids) of $prompt_ids"; continue; }
    for start in $shared_ids $((shared_ids + 3)); do
        expect 0 generate --model "$folder" --ids "$(echo "$ids" | cut -d, -f1-$start)" --max-new $((count - start)) --print-ids --no-stop
        [ "$(cat "$out")" = "$ids" ] ||
            fail "$name: greedy ids from $start: $(cat "$out") instead of $ids"
    done
    expect 0 generate --model "$folder" --ids 1,2,3 --max-new 5 --temperature 0 --print-ids --no-stop scan_layers=false
    first=$(cat "$out")
    expect 0 generate --model "$folder" --ids 1,2,3 --max-new 5 --print-ids --no-stop threads=1
    [ "$(cat "$out")" = "$first" ] || fail "$name: threads or scan_layers change the ids"
    # One row on eight devices lies whole on each; the weights are split.
    expect 0 generate --model "$folder" --ids "$(echo "$ids" | cut -d, -f1-$shared_ids)" --max-new $((count - shared_ids)) \
        --print-ids --no-stop engine=cpu cpu_devices=8 ici_data_parallelism=2 ici_fsdp_parallelism=2 ici_tensor_parallelism=2
    [ "$(cat "$out")" = "$ids" ] || fail "$name: eight devices choose other ids: $(cat "$out")"
    expect 2 generate --model "$folder" --prompt text
    says err 'token ids instead (--ids 1,2,3'
    expect 2 generate --model "$folder" --ids 1,99999
    says err 'prompt token 1 is 99999; the model has tokens 0 …'
    limit=$(sed -n 's/.*"max_position_embeddings": *\([0-9]*\).*/\1/p' "$folder/config.json")
    long=$(awk -v n=$((limit + 10)) 'BEGIN { for (i = 0; i < n; i++) printf "%s%d", (i ? "," : ""), 1 + i % 50 }')
    [ "$limit" -gt 2000 ] || { expect 0 generate --model "$folder" --ids "$long" --max-new 1 --print-ids && says err 'positions'; }
done

# ---- a model of bytes ----------------------------------------------------------------------------
i=0
while [ $i -lt 100 ]; do
    echo "the cat sat on the mat"
    i=$((i + 1))
done >"$work/cats.txt"
train cats max_position_embeddings=64 dataset_type=text dataset_path="$work/cats.txt" num_epoch=50 steps=150 warmup_steps_fraction=0
model=$work/runs/cats
expect 0 generate --model "$model" --prompt 'the cat' --max-new 12
says out 'the cat sat on the'
[ "$(wc -l <"$out")" -ge 1 ] || fail 'text does not end with a line'
[ -s "$err" ] && fail 'a good run wrote to standard error' "$(show)"
cp "$out" "$work/greedy"
expect 0 generate --model "$model/checkpoints/150" --prompt 'the cat' --max-new 12
cmp -s "$out" "$work/greedy" || fail 'a run and its newest checkpoint write different texts'
sample() { # SEED
    expect 0 generate --model "$model" --prompt t --max-new 40 --temperature 2 --seed "$1" --print-ids --no-stop
    cat "$out"
}
a=$(sample 1) b=$(sample 1) c=$(sample 2)
[ "$a" = "$b" ] || fail 'the same seed, another text'
[ "$a" != "$c" ] || fail 'another seed, the same text'
expect 0 generate --model "$model" --prompt t --max-new 40 --temperature 2 --top-p 0 --seed 1 --print-ids
d=$(cat "$out")
expect 0 generate --model "$model" --prompt t --max-new 40 --print-ids
[ "$d" = "$(cat "$out")" ] || fail '--top-p 0 is not the likeliest token'
expect 0 generate --model "$model" --prompt 'the "cat"' --max-new 3 --json
says_like out '^\{"prompt_ids": \[116, 104, 101, 32, 34, 99, 97, 116, 34\], "ids": \[[0-9]+, [0-9]+, [0-9]+\], "text": ".*"\}$'
[ "$(wc -l <"$out")" = 1 ] || fail '--json is not one line'
expect 0 generate --model "$model" --prompt '' --max-new 3 --print-ids
says_like out '^256,'
expect 0 generate --model "$model" --prompt 'a' --max-new 0
[ "$(cat "$out")" = a ] || fail "--max-new 0 adds something: $(cat "$out")"
expect 0 generate --model "$model" --ids 116,104 --max-new 1 --print-ids
says_like out '^116,104,[0-9]+$'
# A vocabulary larger than the tokenizer's, hardly trained: text is made of what can be shown.
train wide vocab_size=3200 steps=1 max_position_embeddings=100
wide=$work/runs/wide
expect 0 generate --model "$wide" --prompt abc --max-new 60 --temperature 5 --print-ids --no-stop
tr ',' '\n' <"$out" | awk '$1 > 258 { exit 1 }' || fail 'an id without text was chosen' "$(show)"
expect 0 generate --model "$wide" --prompt abc --max-new 60 --temperature 5 --no-stop
[ -s "$err" ] && fail 'a good run wrote to standard error' "$(show)"
expect 0 generate --model "$wide" --ids 97,98 --max-new 60 --temperature 5 --no-stop --print-ids
tr ',' '\n' <"$out" | awk '$1 > 258 { found = 1 } END { exit !found }' || fail 'ids are limited to text' "$(show)"
# JSON is valid whatever the bytes are, and what cannot be shown is said.
expect 0 generate --model "$wide" --ids 97,98 --max-new 60 --temperature 5 --no-stop --json
iconv -f utf-8 -t utf-8 "$out" >/dev/null 2>&1 || fail '--json is not UTF-8'
says out '\ufffd'
LC_ALL=C grep -q '[[:cntrl:]]' "$out" && fail '--json has control characters'
[ "$(grep -c 'warning: the byte tokenizer has ids 0 to 258' "$err")" = 1 ] || fail 'ids without text are not said once' "$(show)"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; o = json.load(open(sys.argv[1], encoding="utf-8")); sys.exit(not (len(o["ids"]) == 60 and "\ufffd" in o["text"]))' "$out" ||
        fail '--json cannot be read'
fi
# An error comes alone.
for word in '--ids 1,99999' "--prompt a --max-new $((1 << 24))"; do
    expect 2 generate --model "$model" $word
    [ -s "$out" ] && fail "generate $word prints before its error" "$(show)"
done
# Longer than the 64 positions it was made for: it writes, and says so.
expect 0 generate --model "$model" --prompt "$(head -n 4 "$work/cats.txt")" --max-new 80 --no-stop
says err '64 positions'
expect 0 generate --model "$model" --prompt t --max-new 64 --no-stop
says err '1 token of prompt'
for ids in "" "1," ",1" 1,,2 a 1,b -1 1.5 99999999999 '1 2' '1;2'; do
    expect 2 generate --model "$model" --ids "$ids"
    says err 'expected token ids separated by commas' || echo "  (--ids '$ids')"
done
expect 2 generate --model "$model" --prompt a --max-new -1
expect 2 generate --model "$model" --prompt a --max-new many
says err '--max-new many: expected a whole number'
expect 2 generate --model "$model" --prompt a --temperature hot
expect 2 generate --model "$model" --prompt a --top-p 2
expect 2 generate --model "$model" --prompt a --seed -1
expect 2 generate --model "$model" --prompt a --ids 1
expect 2 generate --model "$model" --prompt a stray
says err stray
expect 2 generate --model "$model" --prompt a stepz=3
says err 'did you mean steps'
[ $found = 1 ] || echo "without $shared/golden: published models were not tried"
finish
