#!/bin/sh
# collectives.sh: the slice check as a program: the sentence on every engine, a line a rank, JSON, a device that lies,
# and every way to ask for what cannot be. XLA's cpu plugin is used where it is found, the fake plugin always.
. "$(dirname "$0")/../cli_help.sh"

build=$(cd "$(dirname "$TESSERA")" && pwd)
fake=$build/tests/fake/libfake_pjrt.so
[ -e "$fake" ] || { echo "$fake is not built"; exit 1; }
export FAKE_PJRT_THREADS=1
square="cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2"

# sentence N SUM: the last line, word for word.
sentence() {
    tail -n 1 "$out" | grep -qE "^All $1 tessera ranks verified TP parity \(max_abs_diff=0\.0[0-9]{5}\) and all_reduce sum = $2\$" ||
        fail "not the sentence for $1 ranks with the sum $2" "$(show)"
}
# ranks N: so many lines, each rank once and in order.
ranks() {
    grep -E '^rank [0-9]+: device [0-9]+, host [^ ]+.*, max_abs_diff=0\.[0-9]{6}, sum=[0-9]+\.0$' "$out" |
        awk -v n="$1" '$2 != NR - 1 ":" { exit 1 } END { exit NR != n }' || fail "not one line for each of $1 ranks" "$(show)"
}

# ---- engine=cpu: without a file, with one ----------------------------------------------------------
for n in 1:1.0 2:3.0 4:10.0 16:136.0 256:32896.0; do
    expect 0 collectives engine=cpu cpu_devices=${n%:*} --no-timing
    ranks ${n%:*}
    sentence ${n%:*} ${n#*:}
    [ -s "$err" ] && fail "$n: something on standard error" "$(show)"
done
expect 0 collectives engine=cpu cpu_devices=16 ici_fsdp_parallelism=4 ici_tensor_parallelism=4
sentence 16 136.0
says_like out '^rank 7: device 7, host [^ ]+, fsdp 1 tensor 3, '
for axis in fsdp tensor; do
    for kind in all_gather reduce_scatter all_reduce permute; do
        says_like out "^$axis×4 +$kind +[0-9]+\.[0-9]+ +[0-9]+\.[0-9]+ +[0-9]+\.[0-9]+ +[0-9]+\.[0-9]+\$"
    done
done
says out 'virtual devices run in lockstep on one clock'
says_not out ' on each rank alone'
expect 0 collectives engine=cpu cpu_devices=2 --quiet
[ "$(wc -l <"$out")" = 1 ] && sentence 2 3.0
printf 'engine: cpu\ncpu_devices: 8\n' >"$work/slice.yml"
expect 0 collectives "$work/slice.yml" ici_data_parallelism=2 --no-timing
sentence 8 36.0

# ---- JSON ------------------------------------------------------------------------------------------
number='-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?'
expect 0 collectives engine=cpu $square --json
# lines_like N EXPRESSION: so many lines of standard output are like it, whatever stands behind.
lines_like() {
    [ "$(grep -cE "^$2" "$out")" = "$1" ] || fail "not $1 lines like $2" "$(show 40)"
}
lines_like 1 "\{\"ok\": true, \"engine\": \"[^\"]+\", \"devices\": 4, \"max_abs_diff\": $number, \"sum\": 10, \"one_clock\": true, "
lines_like 1 ".*, \"product\": 0, \"axes\": \[\{\"name\": \"fsdp\", \"size\": 2, \"slow\": (true|false)\}, \{"
rank='\{"rank": [0-3], "device": [0-3], "host": "[^"]*", "coordinates": \[[01], [01]\]'
lines_like 4 "$rank, \"max_abs_diff\": $number, \"sum\": 10, \"seconds\": null, \"slow\": false, \"ok\": true, \"problem\": \"\"\}"
timing="\{\"axis\": \"(fsdp|tensor)\", \"kind\": \"[a-z_]+\", \"devices\": 2, \"bytes\": [0-9]+, \"seconds\": $number"
lines_like 8 "$timing, \"best_seconds\": $number, \"algorithm_bytes_per_s\": null, \"bus_bytes_per_s\": null\}"
large=$(grep -cE "$timing, \"best_seconds\": $number, \"algorithm_bytes_per_s\": $number, \"bus_bytes_per_s\": $number\}" "$out")
[ "$large" -ge 8 ] || fail "$large bandwidths in the JSON instead of eight" "$(show 40)"
tail -n 1 "$out" | grep -q '}\]}$' || fail 'the JSON does not end'

# ---- xla -------------------------------------------------------------------------------------------
on_fake="engine=xla plugin=$fake $square"
expect 0 collectives $on_fake --no-timing
ranks 4
sentence 4 10.0
FAKE_PJRT_ORDER=reversed expect 0 collectives $on_fake --no-timing
sentence 4 10.0
says_like out '^rank 3: device 100003, host [^ ]+, fsdp 1 tensor 1, '
if "$TESSERA" plugins list 2>/dev/null | grep -q '^cpu '; then
    expect 0 collectives engine=xla plugin=cpu $square
    ranks 4
    sentence 4 10.0
    says_like out '^products of [0-9]+ × [0-9]+ on each rank alone: [0-9.]+ ms on rank [0-3] … [0-9.]+ ms on rank [0-3]$'
    for n in 1:1.0 2:3.0 16:136.0; do
        expect 0 collectives engine=xla plugin=cpu cpu_devices=${n%:*} --no-timing
        sentence ${n%:*} ${n#*:}
    done
else
    echo "part left out: no plugin cpu (TESSERA_PLUGIN_PATH names the folder)"
fi

# ---- a device that lies ----------------------------------------------------------------------------
FAKE_PJRT_LIE=2 expect 1 collectives $on_fake
says err 'tessera collectives: 1 of 4 ranks disagrees'
says_like err '^  rank 2 \(device 2, host [^ ]+\): all_reduce of rank \+ 1 over all devices: element 3 is [^ ]+, expected 10$'
says_not err 'rank 1'
says_not out 'verified'
says_not out 'collective '
ranks_of=$(grep -c '^rank ' "$out")
[ "$ranks_of" = 4 ] || fail "a line for $ranks_of ranks instead of 4" "$(show)"
FAKE_PJRT_LIE=2 expect 1 collectives $on_fake --json
says_like out '^\{"ok": false, '
says_like out '^\{"rank": 2, .* "ok": false, "problem": "all_reduce of rank '
[ "$(grep -c '"ok": true' "$out")" = 3 ] || fail 'not three sound ranks in the JSON' "$(show)"
FAKE_PJRT_LIE=0 expect 1 collectives engine=xla plugin="$fake" --quiet
[ -s "$out" ] && fail '--quiet said something on standard output' "$(show)"
FAKE_PJRT_FAIL=PJRT_LoadedExecutable_Execute=13:no_such_luck expect 1 collectives $on_fake
says err 'no_such_luck'

# ---- what cannot be --------------------------------------------------------------------------------
expect 2 collectives engine=cpu cpu_devices=6
says err "6 devices: the feed-forward's 512 columns must divide by them; use 1, 2, 4, 8, 16, 32, 64, 128, 256 or 512"
expect 2 collectives engine=cpu cpu_devices=1024
expect 2 collectives engine=cpu cpu_devices=16 ici_fsdp_parallelism=3
says err 'ici_fsdp_parallelism=3'
expect 2 collectives cpu_devices=two
expect 2 collectives --goldn x
says err 'did you mean --golden?'
expect 2 collectives --golden
expect 2 collectives nowhere.yml
expect 2 collectives --golden "$work/nowhere"
says err "$work/nowhere"
printf 'no tensors' >"$work/bad.safetensors"
expect 3 collectives --golden "$work/bad.safetensors"
says err "$work/bad.safetensors"
expect 4 collectives engine=xla plugin="$build/tests/fake/libno_api.so"
FAKE_PJRT_DEVICES=0 expect 4 collectives engine=xla plugin="$fake"
says err 'no device'
FAKE_PJRT_DEVICES=3 expect 2 collectives engine=xla plugin="$fake" cpu_devices=3
expect 0 collectives --help
says out 'tessera collectives cpu_devices=16'

# ---- the golden file -------------------------------------------------------------------------------
golden=$shared/golden/feedforward.safetensors
if [ -e "$golden" ]; then
    for n in 1 4 16; do
        expect 0 collectives engine=cpu cpu_devices=$n --no-timing --golden "$golden"
        says_like out "^All $n tessera ranks verified TP parity \(max_abs_diff=0\.0[0-9]{5}\)"
    done
    expect 0 collectives $on_fake --no-timing --golden "$golden"
    expect 3 collectives --golden "$shared/golden/tiny-llama3/model.safetensors"
    says err 'has no tensor w1; the slice check needs w1 [512,128], w2 [128,512], x and y [64,128]'
    # The last number of the file belongs to x or y: either way the two no longer agree.
    head -c $(($(wc -c <"$golden") - 4)) "$golden" >"$work/changed.safetensors"
    printf '\000\000\200\104' >>"$work/changed.safetensors"
    expect 1 collectives engine=cpu cpu_devices=2 --golden "$work/changed.safetensors"
    says err '2 of 2 ranks disagree'
    says err 'by the golden file'
else
    echo "part left out: no golden/feedforward.safetensors in the shared folder (TESSERA_SHARED)"
fi
finish
