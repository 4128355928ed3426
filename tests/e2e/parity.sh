#!/bin/sh
# parity.sh: the published models agree with their references; a reference that is changed in one place
# does not; every exit code, the table, and the JSON.
. "$(dirname "$0")/../cli_help.sh"
need_shared golden/tiny-llama3/golden.safetensors

for name in tiny-llama3 tiny-llama31; do
    model=$shared/golden/$name golden=$shared/golden/$name/golden.safetensors
    for word in scan_layers=true scan_layers=false remat_policy=none threads=1; do
        expect 0 parity "$model" --golden "$golden" $word
        says_like out '^parity: [0-9]+ tensors, 0 beyond their bound$'
    done
    for row in logits loss step_loss hidden.embed hidden.0 hidden.norm grad.model.embed_tokens.weight \
        grad.model.layers.1.mlp.down_proj.weight grad.model.norm.weight; do
        says_like out "^$row  *[0-9.]+e[-+][0-9]+  *[0-9.]+e[-+][0-9]+  *[0-9.]+e[-+][0-9]+  ok\$"
    done
    says_like out '^step_grad_norm .* reported$'
    expect 0 parity "$model" --golden "$golden" dtype=bfloat16
    expect 0 parity "$model" --golden "$golden" --quiet
    [ "$(wc -l <"$out")" = 1 ] || fail "--quiet prints more than the sum" "$(show)"
    [ -s "$err" ] && fail 'parity wrote to standard error' "$(show)"
done
model=$shared/golden/tiny-llama3 golden=$shared/golden/tiny-llama3/golden.safetensors

# ---- JSON: one object, one row a line ------------------------------------------------------------
expect 0 parity "$model" --golden "$golden" --json
number='-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?'
row="\\{\"name\": \"[a-z0-9_.]+\", \"max_abs\": ($number|null), \"max_rel\": ($number|null), \"bound\": ($number|null), \"ok\": (true|false)\\}"
[ "$(head -n 1 "$out")" = '{"ok": true, "tensors": [' ] && [ "$(tail -n 1 "$out")" = ']}' ] ||
    fail 'the JSON is no object with ok and tensors'
sed '1d;$d' "$out" | sed '$!s/,$//' | grep -vqE "^$row\$" && fail 'a row of the JSON has another form' "$(show)"
[ -s "$err" ] && fail '--json wrote to standard error' "$(show)"

# ---- one number changed --------------------------------------------------------------------------
header=$(($(od -An -tu8 -N8 "$golden")))
dd if="$golden" bs=1 skip=8 count=$header 2>/dev/null >"$work/header"
# perturb NAME: the first number of this tensor becomes 1024 (f32, little-endian 00 00 80 44).
perturb() {
    begin=$(tr '{' '\n' <"$work/header" | grep -A1 "\"$1\":\$" | tail -n 1 | sed 's/.*"data_offsets":\[\([0-9]*\),.*/\1/')
    cp "$golden" "$work/changed.safetensors"
    chmod u+w "$work/changed.safetensors"
    printf '\000\000\200\104' | dd of="$work/changed.safetensors" bs=1 seek=$((8 + header + begin)) conv=notrunc 2>/dev/null
}
for tensor in logits loss hidden.0 step_loss grad.model.layers.0.self_attn.q_proj.weight grad.model.norm.weight; do
    perturb $tensor
    expect 1 parity "$model" --golden "$work/changed.safetensors"
    says_like out "^$tensor .* FAILED\$"
    says out ', 1 beyond their bound'
done
expect 1 parity "$model" --golden "$work/changed.safetensors" --quiet
[ "$(wc -l <"$out")" = 2 ] || fail '--quiet prints more than what fails' "$(show)"
expect 1 parity "$model" --golden "$work/changed.safetensors" --json
says_like out '^\{"ok": false, "tensors": \[$'
perturb step_grad_norm # reported, not judged
expect 0 parity "$model" --golden "$work/changed.safetensors"

# Another model's reference has tensors of other sizes: no comparison at all.
expect 3 parity "$model" --golden "$shared/golden/tiny-llama31/golden.safetensors"
says_like err "$shared/golden/tiny-llama31/golden.safetensors: reference tensor .* has [0-9]+ elements; this model gives [0-9]+ \\($model\\)"

# ---- what cannot be compared ---------------------------------------------------------------------
expect 2 parity
expect 2 parity "$model"
expect 2 parity "$model" --golden "$work/none.safetensors"
says err "$work/none.safetensors"
expect 2 parity "$work" --golden "$golden"
says err "$work"
expect 2 parity "$model" --golden "$golden" dtype=float17
says err 'dtype=float17'
head -c 3000 "$golden" >"$work/cut.safetensors"
expect 3 parity "$model" --golden "$work/cut.safetensors"
says err "$work/cut.safetensors"
expect 3 parity "$model" --golden "$model/model.safetensors"
says err "$model/model.safetensors: the reference has no tensor input_ids"
[ -s "$out" ] && fail 'a failed comparison printed a table'
finish
