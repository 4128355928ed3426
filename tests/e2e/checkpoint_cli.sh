#!/bin/sh
# checkpoint_cli.sh: tessera checkpoint on the folders of real runs: what it says of whole, damaged, half-written and
# vanishing checkpoints; compared over meshes and steps; removed, and what must not be.
. "$(dirname "$0")/../cli_help.sh"
host=$(hostname | sed 's/[^A-Za-z0-9.]/_/g')
runs=$work/runs

# The program on words, from inside the folder of runs; json: one object on standard output.
checkpoint() { code=$1; shift; (cd "$runs" && exec "$TESSERA" checkpoint "$@") >"$out" 2>"$err" </dev/null; code_is "$code" $? "checkpoint $*"; }
json() {
    checkpoint "$@" --json
    [ -s "$err" ] && [ "$1" = 0 ] && fail "checkpoint $* --json writes to standard error" "$(show)"
    command -v python3 >/dev/null || return 0
    python3 -m json.tool <"$out" >"$work/json" || fail "checkpoint $* --json is no JSON object" "$(show)"
}
command -v python3 >/dev/null || echo 'python3 is missing: what --json prints was not parsed'
narrow() { grep -q '.\{81\}' "$out" && fail "over 80 columns: $1" "$(show 40)"; }

flip() { # FILE: the lowest bit of the byte in its middle
    middle=$(($(wc -c <"$1") / 2))
    byte=$(od -An -tu1 -j $middle -N 1 "$1" | tr -d ' ')
    printf "$(printf '\\%03o' $((byte ^ 1)))" | dd of="$1" bs=1 seek=$middle conv=notrunc 2>/dev/null
}

mesh="cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 base_num_kv_heads=2 vocab_size=260 per_device_batch_size=1"
train first steps=6 checkpoint_period=2 frozen_parameters=model.embed_tokens.weight
train mesh steps=4 checkpoint_period=2 base_num_kv_heads=2 vocab_size=260
rm -rf "$runs/moved"
train moved steps=5 $mesh load_full_state_path="$runs/mesh/checkpoints/4"

# ---- ls ------------------------------------------------------------------------------------------
checkpoint 0 ls first
narrow 'ls first'
says_like out '^ +6  20[0-9-]+ [0-9:]+ +[0-9.]+ KiB +[0-9.]+ KiB  whole$'
says out '4 whole checkpoints'
says out 'on disk: they share files'
says out 'a resume takes step 6'
says out '--verify hashes every byte'
checkpoint 0 ls first --quiet
[ "$(wc -l <"$out")" = 5 ] || fail 'ls --quiet is not the table alone' "$(show)"
checkpoint 0 ls moved first/checkpoints/2
says out 'on 4 devices, fsdp=2 tensor=2'
says out 'first/checkpoints/2'
json 0 ls first moved
says out '"resume_step": 6'
says out '"evaluation_loss": null'
mkdir -p "$runs/new" "$runs/empty"
: >"$runs/new/metrics.jsonl"
checkpoint 0 ls new
says out 'holds no checkpoint yet'
json 0 ls new
checkpoint 2 ls gone
says err 'gone: does not exist'
checkpoint 2 ls empty
says err 'is empty; expected'
checkpoint 2 ls .
says err 'holds runs ('
checkpoint 2 ls first/config.yml
says err 'is a file'
mkdir "$runs/file" "$runs/nowhere"
: >"$runs/file/checkpoints"
ln -s gone "$runs/nowhere/checkpoints"
checkpoint 2 ls file
says err 'file/checkpoints: is no folder'
for path in nowhere nowhere/checkpoints; do
    checkpoint 2 ls $path
    says err 'nowhere/checkpoints: is a link to something that is not there'
done
rm -rf "$runs/empty" "$runs/file" "$runs/nowhere"

# ---- a step that is a link -------------------------------------------------------------------------
cp -r "$runs/first" "$runs/linked"
rm -r "$runs/linked/checkpoints/4"
cp -r "$runs/first/checkpoints/4" "$runs/linked/4"
ln -s ../4 "$runs/linked/checkpoints/4"
checkpoint 0 ls linked
says_not out 'frozen files'
checkpoint 0 rm linked --step 4
says out 'checkpoints/4: 0 B freed'
checkpoint 0 verify linked/4
rm -rf "$runs/linked"

# ---- copies, and names with any bytes --------------------------------------------------------------
odd=$(printf 'co\033[31mpy\377')
cp -r "$runs/first/checkpoints/6" "$runs/$odd"
checkpoint 0 ls "$odd"
says out 'co?[31mpy'
says_like out '^ +6  .* whole$'
json 0 ls "$odd"
checkpoint 0 verify "$odd"
checkpoint 0 diff first/checkpoints/6 "$odd"
checkpoint 0 rm "$odd"
[ -e "$runs/$odd" ] && fail 'a copied folder was not removed'

# ---- what is not whole -----------------------------------------------------------------------------
cp -a "$runs/first" "$runs/odd"
at=$runs/odd/checkpoints
mkdir "$at/8" "$at/10.tmp-$host-99999999" "$at/12.tmp-$host-$$" "$at/14.tmp-elsewhere_$$-1"
echo begun >"$at/8/shard-00000-of-00001.safetensors"
rm "$at/4/index-00000-of-00001.json"
checkpoint 0 ls odd
narrow 'ls odd'
for row in '4 .*damaged' '6 .*whole' '8 .*incomplete' '10 .*leftover' '12 .*being written' '14 .*being written'; do
    says_like out "^ +$row$"
done
says out 'index-00000-of-00001.json: is missing; the manifest'
says out 'a resume takes step 6'
json 0 ls odd
checkpoint 1 verify odd
says out '2 of 5 are not whole'
says out 'ls RUN --verify tells'
checkpoint 1 verify odd --quiet
[ "$(grep -c '^[a-z]' "$out")" = 2 ] || fail 'verify --quiet does not tell just what is wrong' "$(show)"
json 1 verify odd
says out '"ok": false'
# ---- one flipped bit in each kind of file ----------------------------------------------------------
checkpoint 0 verify first
says_like out '^[0-9.]+ KiB hashed in [0-9.]+ s, [0-9.]+ GB/s; all whole$'
for file in shard index frozen frozen-index manifest; do
    rm -rf "$runs/flipped"
    cp -r "$runs/first" "$runs/flipped"
    path=$(ls "$runs/flipped/checkpoints/6/$file"[-.]* | grep -E "/$file(-[0-9]|\.json)")
    flip "$path"
    checkpoint 1 verify flipped
    says out "${path##*/}"
    says_like out '^damaged .* flipped/checkpoints/6$'
    says out '1 of 4 is not whole'
    checkpoint 0 ls flipped --verify
    says out 'a resume takes step 4'
    checkpoint 1 verify flipped/checkpoints/6
    checkpoint 3 diff flipped/checkpoints/6 first
    # What a resume takes is the one before: that one stays, and the damaged one may go.
    checkpoint 2 rm flipped/checkpoints/4
    says err 'is the newest checkpoint that verifies'
    checkpoint 0 rm flipped --keep 1 --dry-run
    says out 'would remove flipped/checkpoints/2'
    says_not out 'checkpoints/4'
    checkpoint 0 rm flipped/checkpoints/6
done
json 0 verify first
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
assert o["bytes"] == sum(r["bytes"] for r in o["checkpoints"]) >= o["hashed_bytes"] > 0, o' "$out" ||
        fail 'verify --json: bytes is not the sum of its rows' "$(show)"
fi
checkpoint 1 verify new
says err 'there is no checkpoint to verify'

# ---- where a resume finds none ---------------------------------------------------------------------
rm -rf "$runs/flipped"
cp -r "$runs/first" "$runs/flipped"
for step in 2 4 6; do echo '{' >"$runs/flipped/checkpoints/$step/manifest.json"; done
checkpoint 0 ls flipped
says out 'a resume finds none that it can use'
says out 'a new run takes step 0 with load_full_state_path=flipped/checkpoints/0'
echo '{' >"$runs/flipped/checkpoints/0/manifest.json"
checkpoint 0 ls flipped
says out 'another run_name begins anew'
rm -rf "$runs/flipped"

# ---- what this user may not read -------------------------------------------------------------------
chmod 755 "$work"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && nobody='setpriv --reuid 65534 --clear-groups' &&
    $nobody test -x "$TESSERA" && $nobody test -r "$runs/first/checkpoints/6/manifest.json"; then
    as_nobody() {
        code=$1
        shift
        (cd "$runs" && exec $nobody "$TESSERA" checkpoint "$@") >"$out" 2>"$err" </dev/null
        code_is "$code" $? "checkpoint $* as nobody"
    }
    cp -r "$runs/first" "$runs/private"
    at=$runs/private/checkpoints
    mkdir "$at/5.tmp-$host-99999999"
    : >"$at/5.tmp-$host-99999999/shard-00000-of-00001.safetensors"
    chmod 700 "$at/4" "$at/5.tmp-$host-99999999"
    chown 65534 "$runs/private" "$at" "$at/6" "$at/0"
    before=$(ls "$at")
    as_nobody 0 ls private
    says_like out '^ +4 .*unreadable$'
    says out 'permission denied'
    as_nobody 1 verify private
    as_nobody 0 rm private --leftovers
    says out 'there is nothing to remove'
    says err 'stays: '
    as_nobody 2 rm private --step 4
    says err 'cannot be read, it may be whole'
    as_nobody 1 rm private --step 4 --force
    says_not out 'there is nothing to remove'
    for dry in '' --dry-run; do
        as_nobody 1 rm private --step 2 $dry
        says err 'permission denied'
        [ -s "$out" ] && fail 'rm that failed says something more' "$(show)"
    done
    [ "$(ls "$at")" = "$before" ] || fail "rm as nobody left $(ls "$at")"
    chmod 700 "$at/6"
    chown 0 "$at/6"
    as_nobody 0 ls private
    says out 'a resume stops at step 6'
    chmod 744 "$at"
    chown 0 "$at"
    as_nobody 0 ls private
    [ "$(grep -c 'unreadable$' "$out")" = 4 ] || fail 'steps that cannot be looked at are left out' "$(show)"
    checkpoint 0 verify private
    rm -rf "$runs/private"
    at=$runs/odd/checkpoints
else
    echo 'not root, no setpriv, or a path that nobody may read: checkpoints of another user were not tried'
fi

# ---- diff ------------------------------------------------------------------------------------------
checkpoint 0 diff mesh/checkpoints/4 moved/checkpoints/4
says_like out '^parameters +[0-9]+ tensors, identical'
says_like out '^moments +[0-9]+ tensors, identical'
says_like out '^  mesh .*fsdp=2, tensor=2$'
says_like out '^  order_hash .*same$'
says_like out '^  run_name +mesh +moved$'
json 0 diff mesh/checkpoints/4 moved/checkpoints/4 --tensors
says out '"name": "devices", "a": 1, "b": 4, "same": false'
says out '"name": "evaluation_loss", "a": null'
checkpoint 1 diff first/checkpoints/2 first/checkpoints/4
says_like out '^  rows +8 +16$'
says_like out '^ *[0-9.]+ %  +[0-9.e+-]+ +[0-9.e+-]+  model\.layers\.0\.'
says out 'more; --tensors shows all'
says_not out 'embed_tokens.weight'
checkpoint 1 diff first/checkpoints/2 first/checkpoints/4 --tensors
says_like out '^ +same +model.embed_tokens.weight$'
json 1 diff first/checkpoints/2 first
checkpoint 1 diff first/checkpoints/2 first --quiet
[ -s "$out" ] && fail 'diff --quiet is not quiet'
checkpoint 1 diff first mesh
says_like out 'shape +model.embed_tokens.weight \[259,16\] and \[260,16\]'
checkpoint 2 diff first gone
checkpoint 2 diff first new
if [ -e "$shared/golden/tiny-llama3/model.safetensors" ]; then
    model=$(cd "$shared/golden/tiny-llama3" && pwd)
    expect 0 train base.yml model_path="$model" dtype=float32 max_target_length=16 per_device_batch_size=2 steps=1 \
        threads=1 log_config=false base_output_directory="$runs" run_name=tuned
    checkpoint 0 diff tuned/checkpoints/0 "$model"
    says_like out '^parameters +[0-9]+ tensors, identical'
    says out 'one of the two has weights alone'
    checkpoint 1 diff "$model/model.safetensors" tuned
    says_not out 'only B'
else
    echo "$shared/golden is missing: no diff with a published model"
fi

# ---- rm --------------------------------------------------------------------------------------------
checkpoint 2 rm odd
says err 'name its steps'
checkpoint 2 rm odd/checkpoints/6
says err 'is the newest checkpoint that verifies'
checkpoint 2 rm odd/checkpoints/12.tmp-$host-$$ odd/checkpoints/0
says err 'is being written'
[ -d "$at/0" ] || fail 'a refusal removed something'
: >"$at/0/notes.txt"
checkpoint 2 rm odd --step 0
says err 'notes.txt'
checkpoint 2 rm odd --step 0 5
says err 'holds no checkpoint of step 5'
rm "$at/0/notes.txt"
checkpoint 0 rm odd --leftovers
says out '10.tmp-'
says err 'of another host'
[ "$(steps_of odd)" = '0 2 4 6 8' ] && [ -d "$at/12.tmp-$host-$$" ] && [ -d "$at/14.tmp-elsewhere_$$-1" ] ||
    fail "rm --leftovers left $(ls "$at")"
checkpoint 0 rm odd --step 4,8 --quiet
[ -s "$out" ] && fail 'rm --quiet is not quiet'
# Frozen files are freed with their last name.
checkpoint 0 rm odd/checkpoints/0 odd/checkpoints/2 odd/checkpoints/6 --dry-run --force
[ "$(grep -c 'are shared with others' "$out")" = 2 ] || fail 'a dry run counts the last name of frozen files wrongly' "$(show)"
json 0 rm odd/checkpoints/0 odd/checkpoints/0
says out '"removed": ['
checkpoint 0 rm odd --step 2
says out 'are shared with others'
checkpoint 0 rm odd --step 6 --force
says_not out 'are shared with others'
json 0 ls odd
says out '"resume_step": null'
checkpoint 0 rm mesh --keep 1
[ "$(steps_of mesh)" = 4 ] || fail "rm --keep 1 left $(steps_of mesh)"
checkpoint 0 rm mesh --keep 1
says out 'there is nothing to remove'
checkpoint 2 rm / --force
checkpoint 2 rm "$work" --force

# ---- words -----------------------------------------------------------------------------------------
while IFS='|' read -r text words; do
    checkpoint 2 $words
    says err "$text"
done <<'TABLE'
expected ls, verify, diff or rm|
did you mean verify|verfy first
expected ls, verify, diff or rm|frobnicate first
expected the folder of a run|ls
diff takes two folders; found 1|diff first
diff takes two folders; found 3|diff first first first
are for rm|ls first --force
are for rm|verify first --keep 1
--tensors is for diff|ls first --tensors
--verify is for ls|verify first --verify
one of --step, --keep and --leftovers|rm first --keep 1 --step 2
--step is for one run|rm first mesh --step 2
expected numbers of steps|rm first --step two
expected numbers of steps|rm first --step=
needs a value|rm first --step
needs a value|rm first --keep
expected a whole number|rm first --keep 0
did you mean --step|rm first --stepp 1
takes no value|rm first --force=yes
take a run's folder|rm first/checkpoints/2 --keep 1
TABLE

# ---- beside a run that writes ----------------------------------------------------------------------
has_steps() { [ "$(steps_of live | wc -w)" -gt 3 ]; }
for commit in rename manifest; do
    rm -rf "$runs/live"
    "$TESSERA" train base.yml $tiny run_name=live steps=1000000 learning_rate_schedule_steps=1000000 checkpoint_period=1 \
        max_num_checkpoints_to_keep=4 checkpoint_commit=$commit --quiet >"$work/live.log" 2>&1 </dev/null &
    pid=$!
    wait_for 60 has_steps || fail 'the background run saves nothing' "$(cat "$work/live.log")"
    i=0
    while [ $i -lt 8 ]; do
        for action in ls verify 'rm --leftovers'; do
            set -- $action
            checkpoint 0 $1 live ${2-}
            grep -Eq 'damaged|incomplete|unreadable' "$out" && fail "$commit: $action beside a run finds a fault" "$(show)"
        done
        checkpoint 0 rm live --keep 2 --quiet
        i=$((i + 1))
    done
    kill -0 $pid 2>/dev/null || fail "$commit: the run did not live through it" "$(cat "$work/live.log")"
    kill -TERM $pid
    wait $pid
    code_is 75 $? "$commit: the run beside"
    grep -Eq 'error|warning' "$work/live.log" && fail "$commit: the run noticed" "$(cat "$work/live.log")"
    checkpoint 0 verify live
done

# ---- signals, terminal -----------------------------------------------------------------------------
many=$(i=0; while [ $i -lt 150 ]; do echo "$runs/first"; i=$((i + 1)); done)
if env --default-signal=INT true 2>/dev/null; then
    : >"$out"
    env --default-signal=INT "$TESSERA" checkpoint verify $many >"$out" 2>"$err" </dev/null &
    pid=$!
    wait_for 20 test -s "$out" || fail 'verify prints nothing'
    kill -INT $pid
    wait $pid
    code_is 130 $? 'Ctrl-C of verify'
    says err 'stopped'
else
    echo 'env(1) cannot put signals back (coreutils before 8.31): Ctrl-C was not tried'
fi
if command -v script >/dev/null && script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    script -qec "'$TESSERA' checkpoint verify $(echo $many)" /dev/null </dev/null >"$out" 2>"$err"
    says_like out '[0-9.]+ MiB of [0-9.]+ MiB, [0-9.]+ GB/s'
fi
finish
