#!/bin/sh
# resume.sh: a run of the same name continues, to the bit; weights and whole states come from other
# runs and from published folders; what does not fit together is refused and nothing is touched.
. "$(dirname "$0")/../cli_help.sh"
i=0
while [ $i -lt 200 ]; do
    echo "row $i of the book, $((i * 37 % 101)) words"
    i=$((i + 1))
done >"$work/book.txt"
awk '{ printf "{\"text\": \"%s\"}\n", substr($0, 1, 2 + NR * 7 % 13) }' "$work/book.txt" >"$work/rows.jsonl"
text="dataset_type=text dataset_path=$work/book.txt"

# ---- 6 steps are 3 and 3 -------------------------------------------------------------------------
# twice NAME WORD…: the whole run, and its halves with the same schedule.
twice() {
    name=$1
    shift
    train "$name-whole" steps=6 "$@"
    train "$name-halves" steps=3 learning_rate_schedule_steps=6 "$@"
    train "$name-halves" steps=6 "$@"
    says out "continuing run $name-halves from $work/runs/$name-halves/checkpoints/3"
    grep -q '^completed step: 3, ' "$out" && ! grep -q '^completed step: 2, ' "$out" ||
        fail "$name: did not continue at step 3"
    [ "$(losses "$name-whole" | wc -l)" = 6 ] || fail "$name: not 6 losses"
    [ "$(losses "$name-whole")" = "$(losses "$name-halves")" ] || fail "$name: losses differ
$(losses "$name-whole")
against
$(losses "$name-halves")"
    cmp -s "$(shard_of "$name-whole" 6)" "$(shard_of "$name-halves" 6)" ||
        fail "$name: the final checkpoints differ"
}
twice synthetic
twice text $text
twice packed dataset_type=jsonl dataset_path="$work/rows.jsonl" grain_packing_type=concat_then_split
twice fitted dataset_type=jsonl dataset_path="$work/rows.jsonl" gradient_accumulation_steps=2
twice padded dataset_type=jsonl dataset_path="$work/rows.jsonl" packing=false dtype=bfloat16
cp -r "$work/runs/text-halves" "$work/before"

# ---- killed, again and again -----------------------------------------------------------------------
# 300 steps straight, against a run that is killed with a save under way and goes on, three times.
long="steps=300 checkpoint_period=7 num_epoch=50 eval_fraction=0.1 eval_interval=50 dataset_type=jsonl
      dataset_path=$work/rows.jsonl gradient_accumulation_steps=2"
has_lines() { [ "$(wc -l <"$work/runs/killed/metrics.jsonl")" -ge "$1" ]; }
# A step that is run again is told again; the later line counts.
last_losses() { losses "$1" | awk '{ l[$1] = $2 } END { for (i = 0; i < 300; i++) print i, l[i] }'; }
train unbroken $long
for lines in 60 130 220; do
    "$TESSERA" train base.yml $tiny run_name=killed $long >"$out" 2>"$err" </dev/null &
    pid=$!
    wait_for 60 has_lines $lines || fail "a run wrote no $lines lines of metrics" "$(show)"
    kill -9 $pid
    wait $pid 2>/dev/null
done
train killed $long
says out 'continuing run killed from'
[ "$(last_losses unbroken)" = "$(last_losses killed)" ] || fail 'a run that was killed three times has other losses'
expect 0 checkpoint diff "$work/runs/unbroken/checkpoints/300" "$work/runs/killed/checkpoints/300"

# ---- nothing left to do --------------------------------------------------------------------------
train text-halves steps=6 $text
says out 'run text-halves has already reached step 6 of 6; nothing to do'
says_not out 'completed step'
# One line, and no engine: whoever restarts a finished run pays for neither a plugin nor a compilation.
expect 0 train base.yml $tiny run_name=text-halves steps=6 $text engine=xla plugin="$work/book.txt" log_config=true
[ "$(grep -c . "$out")" = 1 ] || fail "a finished run says more than one line: $(cat "$out")"
train text-halves steps=4 $text
says out 'run text-halves has already reached step 6 of 4; nothing to do'
cmp -s "$work/before/metrics.jsonl" "$work/runs/text-halves/metrics.jsonl" ||
    fail "a run with nothing to do wrote metrics"

# ---- another model or other data under the same name ---------------------------------------------
refused() { # TEXT WORD…
    text_wanted=$1
    shift
    cp "$work/runs/text-halves/config.yml" "$work/config.kept"
    "$TESSERA" train base.yml $tiny run_name=text-halves steps=8 "$@" >"$out" 2>"$err"
    code=$?
    [ $code = 2 ] || fail "exit $code instead of 2: $*" "$(show)"
    says err "$text_wanted"
    says err 'continuing run text-halves from'
    says err 'another run_name starts afresh'
    diff -r "$work/before/checkpoints" "$work/runs/text-halves/checkpoints" >/dev/null ||
        fail "a refused run changed the checkpoints"
    cmp -s "$work/config.kept" "$work/runs/text-halves/config.yml" ||
        fail "a refused run replaced config.yml"
}
refused 'the model of the checkpoint has ffn=24, the one of this configuration 32' $text base_mlp_dim=32
refused 'the model of the checkpoint has layers=2, the one of this configuration 3' $text base_num_decoder_layers=3
refused 'the model of the checkpoint has rope_theta=10000.0, the one of this configuration 500000.0' \
    $text rope_max_timescale=500000
refused 'rows.jsonl' dataset_type=text dataset_path="$work/rows.jsonl"
refused 'dataset_type text → jsonl, dataset_path' dataset_type=jsonl dataset_path="$work/rows.jsonl"
refused 'add_bos true → false, enable_data_shuffling true → false. Restore it' $text add_bos=false enable_data_shuffling=false
refused 'load_full_state_path=' $text add_bos=false

# ---- keys that change what a step computes --------------------------------------------------------
train altered $text steps=3
says_not out 'changed since the checkpoint'
train altered $text steps=4 learning_rate_schedule_steps=3
says_not out 'changed since the checkpoint'
train altered $text steps=5 learning_rate_schedule_steps=3 adam_b1=0.5 per_device_batch_size=2 gradient_accumulation_steps=2
says out 'changed since the checkpoint: adam_b1 0.9 → 0.5;'
says_not out 'up to rounding'
train altered $text steps=6 adam_b1=0.5
says out 'learning_rate_schedule_steps 3 → 6'

# What was frozen has no moments to go on with; what is frozen later needs none.
train thaw $text steps=3 'frozen_parameters=[*.mlp.*,misspelt.*]'
says err 'frozen_parameters: misspelt.* matches no parameter'
expect 2 train base.yml $tiny run_name=thaw $text steps=6
says err 'mlp.gate_proj.weight was frozen when the checkpoint was written'
train freeze $text steps=3
train freeze $text steps=6 'frozen_parameters=[*.mlp.*]'
says out 'continuing run freeze'

# ---- starting from another run -------------------------------------------------------------------
step_6=$work/runs/text-whole/checkpoints/6
train weights $text load_parameters_path="$work/runs/text-whole/checkpoints/6" steps=2
says out "weights from $work/runs/text-whole/checkpoints/6"
says_like out '^completed step: 0, '
first=$(losses weights | sed -n 's/^0 //p') began=$(losses text-whole | sed -n 's/^0 //p')
awk -v a="$first" -v b="$began" 'BEGIN { exit !(a < b - 0.05) }' ||
    fail "loaded weights start at $first, fresh ones at $began"
train state $text load_full_state_path="$work/runs/text-whole/checkpoints/6" steps=8
says_like out '^completed step: 6, '
says_not out 'completed step: 5'
expect 2 train base.yml $tiny run_name=both load_parameters_path="$step_6" \
    load_full_state_path="$step_6"
says err 'keep one of the two'
expect 2 train base.yml $tiny run_name=none load_parameters_path="$work/runs/text-whole/checkpoints/7"
says err 'does not exist'
# other KEY=VALUE TEXT: another model than the checkpoint's is refused by name, however it is loaded.
other() {
    for path in load_parameters_path load_full_state_path; do
        expect 2 train base.yml $tiny run_name=other $text "$1" $path="$step_6"
        says err "from $step_6"
        says err "the model of the checkpoint has $2 (key ${1%%=*})"
        [ -z "$(steps_of other)" ] || fail "a run that could not start wrote a checkpoint: $1 $path"
    done
}
other base_mlp_dim=32 'ffn=24, the one of this configuration 32'
other rope_max_timescale=500000 'rope_theta=10000.0, the one of this configuration 500000.0'
other normalization_layer_epsilon=1e-6 'norm_eps=1e-5, the one of this configuration 1e-6'
other logits_via_embedding=true 'tied=false, the one of this configuration true'
other rope_type=llama3.1 'rope="default", the one of this configuration "llama3"'
# Factors of a scaling that neither model has are no difference.
train factors $text rope_scaling_factor=4 load_parameters_path="$step_6" steps=1

# The data goes on where the state's run stood, if it is the same; step 7 then sees the same batch.
train on $text steps=8
train half $text steps=4 learning_rate_schedule_steps=8
train goes-on $text steps=8 load_full_state_path="$work/runs/half/checkpoints/4"
says out 'the data goes on where it was'
[ "$(losses on | tail -n 4)" = "$(losses goes-on)" ] || fail 'a whole state does not go on to the bit'
awk '{ print "other " $0 }' "$work/book.txt" >"$work/book2.txt"
train afresh dataset_type=text dataset_path="$work/book2.txt" steps=8 \
    load_full_state_path="$work/runs/half/checkpoints/4"
says out 'the data or its order is another, so it starts afresh'

# ---- a target that was reached -------------------------------------------------------------------
goal="$text eval_fraction=0.1 eval_interval=2 steps=40"
train target $goal target_eval_loss=100
says out 'target_eval_loss'
[ "$(steps_of target)" = "0 2" ] || fail "the target was not reached at step 2: $(steps_of target)"
cp -r "$work/runs/target" "$work/target"
train target $goal target_eval_loss=100
says out 'run target has reached target_eval_loss=100 at step 2'
says_not out 'completed step'
diff -r "$work/target" "$work/runs/target" >/dev/null || fail 'a finished run changed its folder'
train target $goal target_eval_loss=0.001 steps=3
says_like out '^completed step: 2, '
# Another part that is evaluated is another target.
train target $goal target_eval_loss=100 eval_steps=1 steps=4
says_like out '^completed step: 3, '

# ---- a damaged newest checkpoint is named, and the one before continues --------------------------
train damaged $text steps=4 checkpoint_period=2
printf 'x' | dd of="$(shard_of damaged 4)" bs=1 seek=2000 conv=notrunc 2>/dev/null
train damaged $text steps=6 checkpoint_period=2
says err 'checkpoints/4'
says out "continuing run damaged from $work/runs/damaged/checkpoints/2"
says_like out '^completed step: 5, '

# ---- published folders ---------------------------------------------------------------------------
if [ -e "$shared/golden/tiny-llama3/model.safetensors" ]; then
    published=$shared/golden/tiny-llama3
    { # llm.c's token file: magic 20240520, version 1, 300 ids of 16 bits
        printf '\210\330\064\001\001\000\000\000\054\001\000\000'
        head -c 1012 /dev/zero
        awk 'BEGIN { for (i = 0; i < 300; i++) printf "%c%c", 1 + (i * 7) % 90, 255 }' | tr '\377' '\000'
    } >"$work/ids.bin"
    ids="dataset_type=tokens dataset_path=$work/ids.bin max_target_length=16 per_device_batch_size=2 dtype=float32
         steps=3 learning_rate=1e-3 threads=1 log_config=false base_output_directory=$work/runs"
    expect 0 train base.yml $ids run_name=published model_path="$published"
    says out "weights from $published"
    expect 0 train base.yml $ids run_name=published model_path="$published" steps=5
    says_like out '^completed step: 3, '
    expect 0 generate --model "$work/runs/published" --ids 1,2,3 --max-new 2 --print-ids
    says_like out '^1,2,3,[0-9]+,[0-9]+$'
    # The same through load_parameters_path, with the architecture in keys.
    shape=$(tr -d ' \n"' <"$published/config.json" | tr ',{}' '\n\n\n' | awk -F: '
        $1 == "hidden_size" { print "base_emb_dim=" $2 } $1 == "intermediate_size" { print "base_mlp_dim=" $2 }
        $1 == "num_hidden_layers" { print "base_num_decoder_layers=" $2 }
        $1 == "num_attention_heads" { print "base_num_query_heads=" $2 }
        $1 == "num_key_value_heads" { print "base_num_kv_heads=" $2 } $1 == "vocab_size" { print "vocab_size=" $2 }
        $1 == "rope_theta" { print "rope_max_timescale=" $2 }
        $1 == "rms_norm_eps" { print "normalization_layer_epsilon=" $2 }
        $1 == "tie_word_embeddings" { print "logits_via_embedding=" $2 }')
    expect 0 train base.yml $ids run_name=keys load_parameters_path="$published" head_dim=16 $shape
    [ "$(losses keys)" = "$(losses published | head -n 3)" ] ||
        fail "model_path and load_parameters_path differ: $(losses keys), $(losses published)"
    expect 2 train base.yml $ids run_name=theta load_parameters_path="$published" head_dim=16 $shape \
        rope_max_timescale=1234
    says err 'the model of the folder has rope_theta='
    says err 'the one of this configuration 1234.0 (key rope_max_timescale)'
    expect 2 train base.yml $ids run_name=clash model_path="$published" base_emb_dim=8
    says err 'base_emb_dim'
fi
finish
