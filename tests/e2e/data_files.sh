#!/bin/sh
# data_files.sh: data in shards, named by a pattern and compressed: the same losses as from the plain files named one
# by one, a run that goes on after its data was compressed, and what is said of shards that are missing or cut.
. "$(dirname "$0")/../cli_help.sh"
mkdir "$work/data" "$work/packed" "$work/cache" "$work/cut"
for i in 0 1 2 3; do
    awk -v from=$((i * 60)) 'BEGIN { for (i = from; i < from + 60; i++) print "{\"text\": \"row " i " of a small set\"}" }' \
        >"$work/data/part-0000$i-of-00004.jsonl"
done
gzip -k "$work/data/"*.jsonl && mv "$work/data/"*.gz "$work/packed/"
# Two members in one file, as parallel tools write them.
{ head -n 30 "$work/data/part-00001-of-00004.jsonl" | gzip
  tail -n 30 "$work/data/part-00001-of-00004.jsonl" | gzip -1; } >"$work/packed/part-00001-of-00004.jsonl.gz"

# losses RUN: the loss of every step that its metrics have.
losses() { sed -n 's/.*"learning\/loss": *\([^,}]*\).*/\1/p' "$(run_folder "$1")/metrics.jsonl"; }
same_losses() {
    [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ] || fail "$1 and $2 have other losses"
}
rows="dataset_type=jsonl eval_fraction=0.2 eval_interval=4 max_target_length=32 data_cache_directory=$work/cache"
first="$work/data/part-00000-of-00004.jsonl,$work/data/part-00001-of-00004.jsonl"
second="$work/data/part-00002-of-00004.jsonl,$work/data/part-00003-of-00004.jsonl"
train named $rows steps=8 dataset_path="$first,$second"
train pattern $rows steps=8 "dataset_path=$work/data/part-*-of-0000[4].jsonl"
train packed $rows steps=8 "dataset_path=$work/packed/*.jsonl.gz"
same_losses named pattern
same_losses named packed
[ -z "$(ls -A "$work/cache")" ] || fail "unpacked files are left: $(ls -A "$work/cache")"
config="$(run_folder pattern)/config.yml"
[ "$(grep -c 'part-0000[0-3]-of-00004.jsonl' "$config")" -gt 0 ] && ! grep -qF '*-of' "$config" ||
    fail "config.yml has the pattern, not the files: $(grep dataset_path "$config")"

# In a file, where a * needs quotes; and the run's own file gives the same run.
printf 'dataset_path: "%s/data/*.jsonl"\ndataset_type: jsonl\n' "$work" >"$work/run.yml"
expect 0 train "$work/run.yml" $tiny $rows steps=8 run_name=file
same_losses named file
expect 0 train "$config" run_name=again
same_losses named again

# Half of the run, then the data is compressed, then the rest.
train half $rows steps=4 learning_rate_schedule_steps=8 "dataset_path=$work/data/*.jsonl"
train half $rows steps=8 "dataset_path=$work/packed/*.gz"
[ "$(losses half | tail -n 4)" = "$(losses named | tail -n 4)" ] || fail 'compressed data is other data'

# bad CODE TEXT WORD…: training refuses and says TEXT.
bad() {
    code=$1 text=$2
    shift 2
    expect "$code" train base.yml $tiny run_name=bad $rows "$@"
    says err "$text"
    says_not out 'completed step'
}
bad 2 "$work/data holds part-00000-of-00004.jsonl and 3 others" "dataset_path=$work/data/shard-*.jsonl"
bad 2 'part-00000-of-00004.jsonl is named twice' "dataset_path=$work/data/*.jsonl,$work/data/part-00000-of-00004.jsonl"
bad 2 "expected files, such as $work/packed/*.jsonl.gz" "dataset_path=$work/packed"
bad 2 '** is not read' "dataset_path=$work/**/*.jsonl"
bad 2 "$work/gone does not exist" "dataset_path=$work/data/*.jsonl" data_cache_directory="$work/gone"
bad 2 'matches no file' "dataset_path=$work/data/*.jsonl" eval_fraction=0 "eval_dataset_path=$work/data/eval-*"
head -c 150 "$work/packed/part-00000-of-00004.jsonl.gz" >"$work/cut/a.jsonl.gz"
bad 3 "$work/cut/a.jsonl.gz is cut: its 150 bytes end in the middle of a gzip stream" "dataset_path=$work/cut/*"
{ cat "$work/packed/part-00000-of-00004.jsonl.gz"; echo; } >"$work/cut/a.jsonl.gz"
bad 3 'what follows is none (1 bytes)' "dataset_path=$work/cut/*"
: | gzip >"$work/cut/a.jsonl.gz"
bad 3 'holds nothing' "dataset_path=$work/cut/*"
gzip <"$work/packed/part-00000-of-00004.jsonl.gz" >"$work/cut/a.jsonl.gz"
bad 3 'compressed twice' "dataset_path=$work/cut/*"
printf '{"text": "fine"}\n{"text": oops}\n' | gzip >"$work/cut/a.jsonl.gz"
bad 3 'a.jsonl.gz:2: ' "dataset_path=$work/cut/*"
[ -z "$(ls -A "$work/cache")" ] || fail "files are left: $(ls -A "$work/cache")"
finish
