# cli_help.sh – what the tests of the program share: sourced, not run. Plain POSIX sh and awk.
#
# A test calls the program through `expect CODE WORD…`, which keeps standard output in $out and
# standard error in $err, looks at them with `says`, and ends with `finish`. Every failed
# expectation is printed with what was seen; the test goes on, so that one run shows them all.
# Every file lands in $work, a folder that is removed after a pass.
set -u
export LC_ALL=C
root=$(cd "$(dirname "$0")/../.." && pwd)
TESSERA=${TESSERA:-$root/${BUILD:-build}/tessera}
shared=${TESSERA_SHARED:-$root/../shared}
case $shared in /*) ;; *) shared=$PWD/$shared ;; esac
work=$(mktemp -d "${TMPDIR:-/tmp}/tessera-e2e.XXXXXX") || exit 1
out=$work/out err=$work/err
bad=0
unset JOBSET_NAME HF_TOKEN
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

# A model that trains in milliseconds.
tiny="base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 base_mlp_dim=24
      base_num_decoder_layers=2 vocab_size=259 max_target_length=16 per_device_batch_size=4
      dtype=float32 steps=4 learning_rate=1e-2 threads=1 log_config=false
      base_output_directory=$work/runs"

[ -x "$TESSERA" ] || { echo "$TESSERA is not built"; exit 1; }

fail() {
    printf 'FAIL: %s\n' "$*"
    bad=1
}

# What the last command said, for a failure's report.
show() {
    sed 's/^/  out| /' "$out" | tail -n "${1:-12}"
    sed 's/^/  err| /' "$err" | tail -n "${1:-12}"
}

# expect CODE WORD…: the program ends with CODE. A signal would be 129 or more, and is named.
expect() {
    want=$1
    shift
    "$TESSERA" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    code_is "$want" $got "tessera $*"
}

code_is() {
    [ "$2" = "$1" ] && return 0
    fail "exit $2 instead of $1: $(echo $3)"
    [ "$2" -gt 128 ] && [ "$2" -lt 160 ] && [ "$2" != 130 ] && echo "  ended by signal $(($2 - 128))"
    show
    return 1
}

# says out|err TEXT: the text stands in it, as it is; says_like takes an extended expression.
says() {
    grep -qF -e "$2" "$work/$1" && return 0
    fail "not in std$1: $2"
    show
}
says_like() {
    grep -qE -e "$2" "$work/$1" && return 0
    fail "nothing in std$1 is like: $2"
    show
}
says_not() {
    grep -qF -e "$2" "$work/$1" || return 0
    fail "should not be in std$1: $2"
    show
}

# train RUN WORD…: a tiny run that must succeed.
train() {
    run_word=run_name=$1
    shift
    expect 0 train base.yml $tiny "$run_word" "$@"
}
run_folder() { echo "$work/runs/$1"; }
shard_of() { echo "$work/runs/$1/checkpoints/$2/shard-00000-of-00001.safetensors"; }
steps_of() { ls "$work/runs/$1/checkpoints" 2>/dev/null | grep -x '[0-9]*' | sort -n | tr '\n' ' ' | sed 's/ $//'; }

# Step and loss, one line a step, from metrics.jsonl with all its digits.
losses() { sed -n 's/^{"step": \([0-9]*\),.*"learning\/loss": \([^,]*\),.*/\1 \2/p' "$work/runs/$1/metrics.jsonl"; }

# waits up to SECONDS for a condition given as words.
wait_for() {
    tries=$(($1 * 20))
    shift
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

need_shared() {
    [ -e "$shared/$1" ] && return 0
    rm -rf "$work"
    echo "needs $1 of the shared folder (TESSERA_SHARED)"
    exit 77
}

finish() {
    [ $bad = 0 ] && rm -rf "$work"
    exit $bad
}
