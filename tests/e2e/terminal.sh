#!/bin/sh
# terminal.sh: help that helps, quiet that is quiet, plain lines in a pipe, one live line on a terminal.
. "$(dirname "$0")/../cli_help.sh"
escape=$(printf '\033') return=$(printf '\r')

# ---- help ----------------------------------------------------------------------------------------
expect 2
says err 'usage: tessera COMMAND'
[ -s "$out" ] && fail 'tessera alone writes to standard output'
for word in --help -h help; do
    expect 0 $word
    says out 'usage: tessera COMMAND'
    [ -s "$err" ] && fail "tessera $word writes to standard error"
done
for command in $("$TESSERA" --help | sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' | grep -v tessera); do
    for word in --help -h; do
        expect 0 $command $word
        says_like out "^usage: tessera $command "
        says_like out '^example:$'
        says_like out "^  tessera $command "
        [ -s "$err" ] && fail "$command $word writes to standard error"
    done
    grep -q '.\{101\}' "$out" && fail "$command --help has lines over 100 columns"
done
case " $("$TESSERA" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p' | tr '\n' ' ')" in
    *' train '*) ;; *) fail 'the list of commands lacks train' ;;
esac
expect 0 --version
says_like out '^tessera [0-9]+\.[0-9]+\.[0-9]+$'

# The first-run example of the help is one that works, with any text and here for two steps.
i=0
while [ $i -lt 400 ]; do
    echo "line $i of a small book"
    i=$((i + 1))
done >"$work/book.txt"
for help in --help 'train --help'; do
    example=$("$TESSERA" $help | sed -n '/^  tessera train base.yml/,/[^\\]$/p' | tr -d '\\\n' | sed 's/^ *tessera train//')
    case $example in *dataset_path=book.txt*) ;; *) fail "no first run in tessera $help" ;; esac
    expect 0 train $(echo "$example" | sed "s|book.txt|$work/book.txt|") steps=1 per_device_batch_size=1 \
        run_name=first base_output_directory="$work/runs" enable_checkpointing=false log_config=false
done

# ---- a pipe: plain lines -------------------------------------------------------------------------
train piped steps=30
[ "$(grep -c '^completed step' "$out")" = 30 ] || fail 'a pipe does not get every step line'
cat "$out" "$err" >"$work/both"
grep -q "[$escape$return]" "$work/both" && fail 'cursor codes in a pipe'
says_not out 'left'

# ---- --quiet -------------------------------------------------------------------------------------
train quiet --quiet
[ -s "$out" ] && fail '--quiet prints to standard output' "$(show)"
[ -s "$err" ] && fail '--quiet prints to standard error' "$(show)"
[ "$(losses quiet | wc -l)" = 4 ] || fail '--quiet writes no metrics'
expect 2 train base.yml $tiny run_name=q --quiet stepz=1
says err stepz
# A known key without effect says so.
train note sa_block_q=512
says err 'sa_block_q'

# ---- log_config ----------------------------------------------------------------------------------
train logged log_config=true hf_access_token=secret-word
says_like out '^Config param learning_rate: '
says_not out secret-word
grep '^Config param' "$out" | sed 's/:.*//' >"$work/keys"
sort -c "$work/keys" 2>/dev/null || fail 'the keys are not sorted'
grep -rq secret-word "$work/runs/logged" && fail 'the access token is in a file of the run'

# ---- a terminal ----------------------------------------------------------------------------------
if ! command -v script >/dev/null || ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    [ $bad = 0 ] || exit 1
    rm -rf "$work"
    echo 'no script(1) that makes a terminal: the live line was not tried'
    exit 77
fi
on_terminal() { # RUN WORD…
    run_word=run_name=$1
    shift
    script -qec "'$TESSERA' train base.yml $(echo $tiny) $run_word steps=40 $*" /dev/null </dev/null >"$out" 2>"$err"
    code_is 0 $? "on a terminal: $run_word $*"
}
export TERM=xterm
on_terminal live
says out "$return${escape}[K"
says_like out 'step [0-9]+/40 .*loss [0-9.]+  [0-9]+ tokens/s  [0-9.]+ s/step  [0-9:]+ left'
lines=$(grep -c 'completed step: ' "$out")
[ "$lines" -ge 10 ] && [ "$lines" -lt 30 ] ||
    fail "a terminal keeps $lines of 40 step lines; about twenty are milestones"
says out 'completed step: 0,'
says out 'completed step: 39,'
tail -n 1 "$out" | grep -q 'left' && fail 'the live line stays at the end'
# What has no effect is said on a terminal too; the configuration only in plain lines.
on_terminal noted sa_block_q=512 log_config=true
says out 'note: sa_block_q'
says_not out 'Config param'
on_terminal listed log_config=true --plain
says out 'Config param'
on_terminal plain --plain
[ "$(grep -c 'completed step: ' "$out")" = 40 ] || fail '--plain does not print every step'
grep -q "$escape" "$out" && fail '--plain writes cursor codes'
on_terminal hushed --quiet
[ -s "$out" ] && fail '--quiet prints on a terminal' "$(show)"
# A dumb terminal cannot move its cursor.
TERM=dumb
on_terminal dumb
grep -q "$escape" "$out" && fail 'a dumb terminal gets cursor codes'
finish
