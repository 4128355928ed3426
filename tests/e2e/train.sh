#!/bin/sh
# train.sh: every kind of data trains, and a run leaves what the contract promises: step lines in
# MaxText's form, metrics.jsonl, a configuration that can be loaded again, checkpoints, evaluation.
. "$(dirname "$0")/../cli_help.sh"

i=0
while [ $i -lt 150 ]; do
    echo "line $i: the quick brown fox jumps over the lazy dog $((i * 37 % 101)) times"
    i=$((i + 1))
done >"$work/book.txt"
awk '{ printf "{\"text\": \"%s\", \"n\": %d}\n", substr($0, 1, 2 + NR * 7 % 13), NR }' "$work/book.txt" >"$work/rows.jsonl"
# llm.c's token file: 256 little-endian i32, magic 20240520, version 1, count, then u16 ids.
{
    printf '\210\330\064\001\001\000\000\000\000\002\000\000'
    head -c 1012 /dev/zero
    awk 'BEGIN { for (i = 0; i < 512; i++) printf "%c%c", 1 + (i * 7) % 100, 1 }' | tr '\001' '\000' | head -c 1024
} >"$work/ids.bin"

# The form of a run's output, for any data.
left_whole() {
    run=$1 last=$(($2 - 1))
    [ "$(grep -c '^completed step: ' "$out")" = "$2" ] || fail "$run: not $2 step lines" "$(show)"
    real='[0-9]+\.[0-9]{3}'
    form="^completed step: [0-9]+, seconds: $real, TFLOP/s/device: $real, Tokens/s/device: $real"
    form="$form, total_weights: [0-9]+, loss: $real\$"
    grep '^completed step' "$out" | grep -vqE "$form" && fail "$run: a step line in another form" "$(show)"
    says_like out '^engine cpu'
    says_like out '^number parameters: [0-9]+\.[0-9]{3} billion \([0-9.]+ (thousand|million): [0-9]+, of them trained [0-9]+\)$'
    says_like out '^Per train step: Total [TGM]FLOPs: [0-9]*[1-9][0-9.]*, split as [0-9.]+% learnable weight flops and [0-9.]+% attention flops$'
    says_like out '^Total estimated memory size: [0-9]+\.[0-9]{3} [MG]B '
    says_not out 'memory size: 0.000'
    [ "$(steps_of "$run")" = "0 $2" ] || fail "$run: checkpoints $(steps_of "$run") instead of 0 $2"
    for file in config.yml metrics.jsonl "checkpoints/$2/manifest.json"; do
        [ -s "$(run_folder "$run")/$file" ] || fail "$run: no $file"
    done
    [ "$(losses "$run" | tail -n 1 | cut -d' ' -f1)" = "$last" ] ||
        fail "$run: metrics end before step $last"
}

# Each line one flat JSON object: step, run_name, then names with a number, null, true or false, or a hash.
metrics_form() {
    number='-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?'
    form="^\\{\"step\": [0-9]+, \"run_name\": \"$1\"(, \"(learning|perf|eval|data)/[a-z_]+\": ($number|null|true|false|\"[0-9a-f]{16}\"))+\\}\$"
    grep -vqE "$form" "$(run_folder "$1")/metrics.jsonl" && fail "$1: a line of metrics.jsonl is no flat JSON object"
    for name in learning/loss learning/lm_loss learning/perplexity learning/total_weights learning/grad_norm \
        learning/raw_grad_norm learning/current_learning_rate perf/step_time_seconds perf/per_device_tflops \
        perf/per_device_tflops_per_sec perf/per_device_tokens perf/per_device_tokens_per_sec; do
        grep -q "\"$name\": " "$(run_folder "$1")/metrics.jsonl" ||
            fail "$1: metrics.jsonl lacks $name"
    done
}

# ---- kinds of data ---------------------------------------------------------------------------
train synthetic
left_whole synthetic 4
metrics_form synthetic
train text dataset_type=text dataset_path="$work/book.txt"
left_whole text 4
says_like out '^data: [0-9]+ samples, [0-9]+ tokens an epoch$'
for packing in true false; do
    train "rows-$packing" dataset_type=jsonl dataset_path="$work/rows.jsonl" packing=$packing
    left_whole "rows-$packing" 4
done
train split dataset_type=jsonl dataset_path="$work/rows.jsonl" grain_packing_type=concat_then_split
left_whole split 4
train ids dataset_type=tokens dataset_path="$work/ids.bin"
left_whole ids 4
cp "$work/book.txt" "$work/again.txt"
train two dataset_type=text dataset_path="$work/book.txt,$work/again.txt"
left_whole two 4
train half dtype=bfloat16
left_whole half 4

# Packing fills the slots that rows alone leave to padding.
weights() { sed -n 's/.*total_weights": \([0-9]*\),.*/\1/p' "$(run_folder "$1")/metrics.jsonl" | awk '{ n += $1 } END { print n }'; }
[ "$(weights rows-true)" -gt "$(weights rows-false)" ] ||
    fail "packing trains no more tokens than padding"

# One fixed batch: the loss must fall on it.
train memory steps=30 warmup_steps_fraction=0
losses memory | awk 'NR == 1 { a = $2 } { b = $2 } END { exit !(b < a - 0.5) }' ||
    fail "the loss on one batch does not fall: $(losses memory | sed -n '1p;$p')"

# ---- the data ends, and the run with it ---------------------------------------------------------
head -c 700 "$work/book.txt" >"$work/short.txt"
train short steps=1000 dataset_type=text dataset_path="$work/short.txt"
says out 'the data ended after step'
last=$(losses short | tail -n 1 | cut -d' ' -f1)
[ "$(steps_of short)" = "0 $((last + 1))" ] ||
    fail "no checkpoint where the data ended: $(steps_of short)"

# ---- evaluation ----------------------------------------------------------------------------------
train eval dataset_type=text dataset_path="$work/book.txt" eval_fraction=0.1 eval_interval=2
[ "$(grep -cE '^Completed eval after train step [13], loss=[0-9]+\.[0-9]{3}, perplexity=[0-9]+\.[0-9]{3}, total_weights=[0-9]+' "$out")" = 2 ] ||
    fail "not two evaluation lines in MaxText's form" "$(show 30)"
says_like out '^evaluation: [0-9]+ samples, [0-9]+ tokens$'
[ "$(grep -c '"eval/avg_loss": [0-9]' "$(run_folder eval)/metrics.jsonl")" = 2 ] ||
    fail "metrics.jsonl lacks evaluations"
metrics_form eval
train eval-file dataset_type=jsonl dataset_path="$work/rows.jsonl" \
    eval_dataset_path="$work/rows.jsonl" eval_interval=4 eval_steps=2
says out 'Completed eval after train step 3, loss='
train eval-target dataset_type=text dataset_path="$work/book.txt" eval_fraction=0.1 \
    eval_interval=1 target_eval_loss=100 steps=50
says out 'target_eval_loss 100.000 is reached'
[ "$(steps_of eval-target)" = "0 1" ] ||
    fail "the run did not end at the target: $(steps_of eval-target)"

# ---- schedules -----------------------------------------------------------------------------------
rates() { sed -n 's/.*current_learning_rate": \([^,]*\),.*/\1/p' "$(run_folder "$1")/metrics.jsonl" | tr '\n' ' '; }
near() { # RUN RATE…: the rates of its steps
    run=$1
    shift
    echo "$(rates "$run")| $*" | awk -F'|' '{ n = split($1, a, " "); if (split($2, b, " ") != n) exit 1
        for (i = 1; i <= n; i++) { d = a[i] - b[i]; if (d < 0) d = -d; if (d > 1e-6) exit 1 } }' ||
            fail "$run: rates $(rates "$run")instead of $*"
}
train cosine steps=10 learning_rate=1 warmup_steps_fraction=0.2 gradient_clipping_threshold=1
near cosine 0 0.5 1 0.955436 0.830570 0.650134 0.449866 0.269430 0.144564 0.1
train wsd steps=10 learning_rate=0.1 warmup_steps_fraction=0.2 lr_schedule_type=wsd wsd_decay_steps_fraction=0.3
near wsd 0 0.05 0.1 0.1 0.1 0.1 0.1 0.1 0.055 0.01

# ---- the configuration of a run can be loaded again ----------------------------------------------
config=$(run_folder text)/config.yml
expect 0 train "$config" run_name=again log_config=false
[ "$(losses again)" = "$(losses text)" ] ||
    fail "config.yml gives another run: $(losses again | tail -n 1), $(losses text | tail -n 1)"
expect 0 train "$config" run_name=logged log_config=true steps=1
says_like out '^Config param steps: 1$'
# Which engine runs, and why, is the first thing that is said.
head -n 1 "$out" | grep -qE '^engine (cpu|xla): ' || fail 'the first line does not name the engine' "$(show)"

# ---- the number of checkpoints, and none ---------------------------------------------------------
train keep steps=6 checkpoint_period=1 max_num_checkpoints_to_keep=2
[ "$(steps_of keep)" = "5 6" ] || fail "two checkpoints were to be kept: $(steps_of keep)"
train none enable_checkpointing=false
[ ! -e "$(run_folder none)/checkpoints" ] || fail "enable_checkpointing=false wrote checkpoints"
train samples dataset_type=text dataset_path="$work/book.txt" sample_interval=2 sample_tokens=5 sample_prompt=line
says out 'sample after step 1:'
# A vocabulary larger than the tokenizer's: samples are made of what can be shown, whatever the data holds.
for vocab in 320 3200; do
    train "samples-$vocab" dataset_type=text dataset_path="$work/book.txt" vocab_size=$vocab sample_interval=1 sample_tokens=40
    [ "$(grep -c '^sample after step' "$out")" = 4 ] || fail "vocab_size=$vocab: not four samples" "$(show)"
    says_not err 'warning'
done
train samples-ids vocab_size=3200 sample_interval=1 sample_tokens=10
[ "$(grep -c '^sample after step' "$out")" = 4 ] || fail 'synthetic ids: not four samples' "$(show)"
[ "$(grep -c 'have no text in the byte tokenizer' "$err")" = 1 ] || fail 'ids without text are not said once' "$(show)"
metrics=$work/elsewhere.jsonl
train elsewhere metrics_file="$metrics"
[ -s "$metrics" ] || fail "metrics_file was not written"
finish
