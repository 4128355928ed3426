#!/bin/sh
# bad_input.sh: wrong words, wrong files and wrong numbers: each a clear message and the exit code of
# the contract (2 configuration or path, 3 content, 6 numerics), and nothing that was there is lost.
. "$(dirname "$0")/../cli_help.sh"
mkdir "$work/folder"
: >"$work/empty.txt"
printf 'x' >"$work/one.txt"
printf '{"text": "fine"}\n{"text": oops}\n' >"$work/broken.jsonl"
printf '{"body": "no text here"}\n' >"$work/other.jsonl"
awk 'BEGIN { for (i = 0; i < 80; i++) print "line " i " of a small book" }' >"$work/book.txt"

# bad CODE TEXT WORD…: training refuses, says TEXT, and leaves no run behind.
bad() {
    code=$1 text=$2
    shift 2
    expect "$code" train base.yml $tiny run_name=bad "$@"
    says err "$text"
    says_not out 'completed step'
    [ -z "$(steps_of bad)" ] || fail "a refused run wrote checkpoints"
}

# ---- data files ----------------------------------------------------------------------------------
for type in text jsonl tokens; do
    bad 2 "$work/folder is a folder" dataset_type=$type dataset_path="$work/folder"
    bad 2 "$work/none.txt does not exist" dataset_type=$type dataset_path="$work/none.txt"
    bad 2 'is a device or pipe' dataset_type=$type dataset_path=/dev/null
    bad 3 "$work/empty.txt" dataset_type=$type dataset_path="$work/empty.txt"
done
bad 2 'max_target_length=2 or less' dataset_type=text dataset_path="$work/one.txt"
bad 3 'one.txt:1: not valid JSON' dataset_type=jsonl dataset_path="$work/one.txt"
bad 3 'has 1 bytes; a token file' dataset_type=tokens dataset_path="$work/one.txt"
bad 2 "did you mean $work/book.txt?" dataset_type=text dataset_path="$work/bok.txt"
bad 3 "$work/broken.jsonl" dataset_type=jsonl dataset_path="$work/broken.jsonl"
says err 'broken.jsonl:2: '
bad 3 "$work/other.jsonl" dataset_type=jsonl dataset_path="$work/other.jsonl"
bad 3 'magic number' dataset_type=tokens dataset_path="$work/book.txt"
# Files of ours under another dataset_type, and weights: what they are and what fits.
{ printf '\210\330\064\001\001\000\000\000'; head -c 2000 /dev/zero; } >"$work/ids.txt"
bad 3 'ids.txt is a token file (llm.c'"'"'s .bin); dataset_type=text reads plain files: set dataset_type=tokens' \
    dataset_type=text dataset_path="$work/ids.txt"
printf 'GGUF\003\000\000\000' >"$work/weights.txt"
bad 3 'is a model in GGUF' dataset_type=text dataset_path="$work/weights.txt"
expect 0 train base.yml $tiny run_name=asrows dataset_type=text dataset_path="$work/broken.jsonl"
says err 'dataset_type=jsonl takes the text out of its rows'
expect 0 train base.yml $tiny run_name=skipping dataset_type=jsonl \
    dataset_path="$work/broken.jsonl" on_bad_row=skip num_epoch=40
says out 'bad rows were skipped'
if [ "$(id -u)" = 0 ]; then
    # Root may read everything: the same as another user, in a folder that this user can reach.
    chmod 755 "$work"
    if command -v setpriv >/dev/null && open=$(mktemp -d /tmp/tessera-open.XXXXXX); then
        nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
        cp "$work/book.txt" "$TESSERA" "$open/"
        chmod 600 "$open/book.txt"
        chmod 711 "$open"
        mkdir "$open/runs"
        chmod 777 "$open/runs"
        $nobody "$open/tessera" train base.yml $tiny base_output_directory="$open/runs" \
            dataset_type=text dataset_path="$open/book.txt" >"$out" 2>"$err" </dev/null
        code_is 2 $? 'an unreadable data file'
        says err 'may not be read by this user'
        chmod 755 "$open/runs"
        $nobody "$open/tessera" train base.yml $tiny base_output_directory="$open/runs" \
            >"$out" 2>"$err" </dev/null
        code_is 2 $? 'an output folder of another user'
        says err "$open/runs is read-only, or not this user's to write"
        # A working folder that may not be written matters to training only.
        train small
        cp -r "$work/runs/small/checkpoints/4" "$open/model"
        chmod -R a+rX "$open"
        cd "$open" || exit 1
        $nobody ./tessera generate --model model --ids 1 --max-new 1 >"$out" 2>"$err" </dev/null
        code_is 0 $? 'generate in a folder of another user'
        $nobody ./tessera train base.yml $tiny base_output_directory= run_name=r >"$out" 2>"$err" </dev/null
        code_is 2 $? 'train in a folder of another user'
        says err './maxtext_output'
        says_not out 'completed step'
        cd "$root" || exit 1
        rm -rf "$open"
    fi
else
    cp "$work/book.txt" "$work/locked.txt"
    chmod 000 "$work/locked.txt"
    bad 2 'may not be read by this user' dataset_type=text dataset_path="$work/locked.txt"
    mkdir "$work/locked"
    chmod 555 "$work/locked"
    bad 2 "$work/locked is read-only" base_output_directory="$work/locked"
    chmod 755 "$work/locked"
fi

# ---- words and keys ------------------------------------------------------------------------------
# Five mistakes are five lines, each with key and value, at once.
expect 2 train base.yml $tiny run_name=five stepz=3 lr_schedule_type=cosin base_num_kv_heads=3 head_dim=7 \
    learning_rate=fast
for text in 'stepz' 'did you mean steps' 'lr_schedule_type=cosin' 'cosine' 'base_num_kv_heads=3' \
    'base_num_query_heads=2' 'head_dim=7' 'learning_rate=fast'; do
    says err "$text"
done
[ "$(grep -cE 'stepz|lr_schedule_type=|base_num_kv_heads=|head_dim=|learning_rate=' "$err")" = 5 ] ||
    fail 'five mistakes are not five lines' "$(show)"
[ ! -e "$work/runs/five" ] || fail 'a refused configuration made a folder'
expect 2 train base.yml $tiny 'steps=[3'
says err steps
expect 2 train nothing.yml
says err nothing.yml
expect 2 train "$work/folder"
says err 'expected key=value'
mkdir "$work/folder.yml"
expect 2 train "$work/folder.yml"
says err "$work/folder.yml"
printf '# all defaults\n' >"$work/empty.yml"
expect 2 train "$work/empty.yml" $tiny run_name=t
says err 'has no key at all'
printf '\357\273\277steps: 1\r\nlearning_rate: 1e-3\r\n' >"$work/mark.yml"
expect 0 train "$work/mark.yml" $(echo $tiny | sed 's/steps=4 learning_rate=1e-2//') run_name=mark
[ "$(losses mark | wc -l)" = 1 ] || fail 'a file with a mark and CRLF was not read'
expect 2 train base.yml $tiny 'adamw_mask=['
says err 'adamw_mask=[   a bracket or quote is not closed'
printf 'steps: 3\nsteps: 4\n' >"$work/twice.yml"
expect 2 train "$work/twice.yml" $tiny run_name=t
says err steps
expect 2 trian
says err 'did you mean train?'
expect 2 --nonsense
says err '--help'
expect 2 train --plane base.yml
says err 'did you mean --plain?'
expect 2 generate --modle x
says err 'did you mean --model?'
expect 2 generate --model
says err '--model needs a value'
expect 2 parity x
says err '--golden FILE is missing'
expect 2 parity
expect 2 generate --model x
says err '--prompt TEXT or --ids'
expect 2 generate --model "$work/none" --ids 1
says err "$work/none does not exist"
expect 2 generate --model "$work/folder" --ids 1
says err "$work/folder holds neither config.json"
expect 2 generate --model "$work/book.txt" --ids 1
says err 'is a file; expected a folder'
expect 2 parity "$work/none" --golden "$work/none"
says err "$work/none does not exist"

# ---- meshes, batches, rules ----------------------------------------------------------------------
# One line with the key to change and the values that work; nothing was opened or made.
mesh() { # KEY TEXT WORD…
    key=$1 text=$2
    shift 2
    bad 2 "$text" engine=cpu "$@"
    says err '1 error in the configuration, nothing was started'
    says err "  $key="
    [ ! -e "$work/runs/bad" ] || fail "a mesh that cannot be made a folder: $*"
}
mesh ici_tensor_parallelism 'tensor may be 1; or cpu_devices=4' ici_tensor_parallelism=4
mesh ici_tensor_parallelism 'with fsdp 4, tensor may be 4 (or -1)' cpu_devices=16 ici_fsdp_parallelism=4 ici_tensor_parallelism=6
mesh ici_tensor_parallelism 'only one axis can be what is left' cpu_devices=16 ici_tensor_parallelism=-1
mesh ici_context_parallelism 'use ici_tensor_parallelism' cpu_devices=16 ici_context_parallelism=2
mesh dcn_data_parallelism 'ici_data_parallelism within the slice' cpu_devices=16 dcn_data_parallelism=2
mesh cpu_devices 'expected from 1 to 4096' cpu_devices=0
mesh per_device_batch_size '1 or 2 works' cpu_devices=16 per_device_batch_size=1.5
mesh eval_per_device_batch_size 'the least is 1' cpu_devices=16 eval_per_device_batch_size=0.5
mesh logical_axis_rules 'fsdp or no axis works' cpu_devices=16 'logical_axis_rules=[[embed, [data]]]'
mesh logical_axis_rules 'did you mean heads?' 'logical_axis_rules=[[heds, [tensor]]]'
mesh shard_mode 'explicit works' shard_mode=auto
expect 2 compile base.yml $tiny compile_topology=v6e:4x4 ici_fsdp_parallelism=3
says err '16 devices cannot be split as fsdp 3; fsdp may be 16 (or -1)'

# ---- where the output goes -----------------------------------------------------------------------
bad 2 'is a file' base_output_directory="$work/book.txt"
bad 2 '/proc belongs to the kernel and takes no files' base_output_directory=/proc/x
mkdir "$work/here"
cd "$work/here" || exit 1
: >maxtext_output
expect 2 train base.yml $tiny base_output_directory= run_name=r
says err 'base_output_directory=./maxtext_output   ./maxtext_output is a file'
says_not out 'engine'
home=${HOME-/}
export HOME="$work/here"
expect 0 train base.yml $tiny 'base_output_directory=~/zz' run_name=r
export HOME="$home"
[ -d "$work/here/zz/r/checkpoints" ] && [ ! -e '~' ] || fail '~/ is not the home folder'
cd "$root" || exit 1
mkdir -p "$work/runs"
: >"$work/runs/afile"
expect 2 train base.yml $tiny run_name=afile
says err "$work/runs/afile"
says err 'is a file'
mkdir -p "$work/runs/sub/checkpoints"
: >"$work/runs/sub/checkpoints/notes.txt"
train sub
[ -e "$work/runs/sub/checkpoints/notes.txt" ] ||
    fail "a stranger's file in checkpoints/ was removed"
if [ -w /dev/full ]; then
    "$TESSERA" train base.yml $tiny run_name=full >/dev/full 2>"$err" </dev/null
    code_is 1 $? "train >/dev/full" && says err 'standard output could not be written: No space left on device'
    [ "$(steps_of full)" = "0 4" ] || fail "a full standard output lost the run: $(steps_of full)"
    "$TESSERA" --help >/dev/full 2>"$err"
    code_is 1 $? "--help >/dev/full"
    "$TESSERA" generate --model "$work/runs/full" --prompt a --max-new 4 >/dev/full 2>"$err"
    code_is 1 $? "generate >/dev/full"
fi
# A reader that goes away: the run notices within a few steps and ends in order, its work saved.
{ "$TESSERA" train base.yml $tiny run_name=pipe steps=100000 2>"$err" </dev/null; echo $? >"$work/code"; } | head -n 8 >"$out"
code_is 1 "$(cat "$work/code")" 'train | head -n 8' &&
    says_like err '^tessera: nobody reads standard output any more; stopped after step [0-9]*; the same command continues'
[ "$(wc -l <"$err")" = 1 ] || fail 'a closed pipe is worth one line' "$(show)"
pipe_steps=$(steps_of pipe | awk '{ print $NF }')
[ "$pipe_steps" -lt 1000 ] || fail "a closed pipe was noticed after $pipe_steps steps"
train pipe steps=$((pipe_steps + 1))
[ "$(steps_of pipe)" = "0 $((pipe_steps + 1))" ] || [ "$(steps_of pipe)" = "0 $pipe_steps $((pipe_steps + 1))" ] ||
    fail "a closed pipe lost the run: $(steps_of pipe)"
"$TESSERA" train base.yml $tiny run_name=closed >&- 2>"$err" </dev/null
code_is 1 $? 'standard output closed' && says err 'standard output could not be written: Bad file descriptor'
[ "$(steps_of closed)" = "0 4" ] || fail "a closed standard output lost the run: $(steps_of closed)"

# ---- numbers that are no numbers -----------------------------------------------------------------
train numb steps=3 dataset_type=text dataset_path="$work/book.txt"
cp -r "$work/runs/numb/checkpoints" "$work/kept"
expect 6 train base.yml $tiny run_name=numb steps=100 dataset_type=text dataset_path="$work/book.txt" \
    num_epoch=100 learning_rate=1000 gradient_clipping_threshold=0 adam_weight_decay=1000 \
    lr_schedule_type=wsd warmup_steps_fraction=0 wsd_decay_steps_fraction=0
says_like err 'step [0-9]+: loss .*nan'
says_not err '-nan'
says err "the newest checkpoint is $work/runs/numb/checkpoints/3. Lower learning_rate, or raise max_nonfinite_steps=10"

diff -r "$work/kept/3" "$work/runs/numb/checkpoints/3" >/dev/null ||
    fail 'numerics: the checkpoint of before changed'
# A loss that is not a number itself stops at once, unless told otherwise: only the last matrix is trained, and
# its decay multiplies it by a million each step.
hot="dataset_type=text dataset_path=$work/book.txt num_epoch=100 learning_rate=1000 adam_weight_decay=1000
     frozen_parameters=model.* lr_schedule_type=wsd warmup_steps_fraction=0 wsd_decay_steps_fraction=0"
expect 6 train base.yml $tiny run_name=hot steps=100 $hot
says_like err 'step [0-9]+: loss nan, gradient norm nan; 1 step in a row'
says err "$work/runs/hot/checkpoints/0. Lower learning_rate, or set abort_on_nan_loss=false"
says_not out '-nan'
expect 6 train base.yml $tiny run_name=hotter steps=100 $hot abort_on_nan_loss=false max_nonfinite_steps=2
says err 'Lower learning_rate, or raise max_nonfinite_steps=2'
train numb steps=5 dataset_type=text dataset_path="$work/book.txt"

# ---- no words, no memory -------------------------------------------------------------------------
# A bare `train` would begin a run of a billion parameters.
for word in "" --quiet --plain; do
    expect 2 train $word
    says err 'model_name=tessera-byte dataset_type=text'
    [ -s "$out" ] && fail 'train without a word writes to standard output'
done
# What finds no room decides what to change.
limited() { # WORD…
    (ulimit -v 1500000 && exec "$TESSERA" train base.yml $tiny run_name=room "$@") >"$out" 2>"$err" </dev/null
    code_is 1 $? "little memory: $*"
}
fits() {
    (ulimit -v 1500000 && exec "$TESSERA" train base.yml $tiny run_name=room steps=1) >"$out" 2>"$err" </dev/null
}
if fits; then
    limited run_name=heavy vocab_size=30000000
    says err 'model.embed_tokens.weight of the model finds no room'
    says err 'a smaller vocabulary'
    says_not err 'batch'
    limited run_name=ahead per_device_batch_size=8192 max_target_length=4096
    says err '4 batches of 8192 rows × 4096 tokens read ahead; a smaller per_device_batch_size or max_target_length'
    limited run_name=long per_device_batch_size=8192 max_target_length=4096 data_prefetch_batches=0
    says err 'the train step finds no room; a smaller per_device_batch_size or max_target_length'
else
    echo 'no run fits into a limited address space here: messages about memory were not tried'
fi
finish
