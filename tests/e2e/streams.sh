#!/bin/sh
# streams.sh: standard streams that are closed, pipes that nobody reads, files that may not grow: nothing of it
# lands in a file of the run, and what was trained is kept.
. "$(dirname "$0")/../cli_help.sh"

# ---- closed --------------------------------------------------------------------------------------
# The number of a closed stream would go to the next file, a checkpoint among them.
whole() { # RUN WHAT
    [ "$(steps_of "$1")" = '0 4' ] || fail "$2: checkpoints $(steps_of "$1")"
    grep -vq '^{.*}$' "$(run_folder "$1")/metrics.jsonl" && fail "$2: text in metrics.jsonl"
    expect 0 generate --model "$(run_folder "$1")" --prompt a --max-new 1
}
"$TESSERA" train base.yml $tiny run_name=in <&- >"$out" 2>"$err"
code_is 0 $? 'standard input closed'
whole in 'standard input closed'
"$TESSERA" train base.yml $tiny run_name=err sa_block_q=512 >"$out" 2>&- </dev/null
code_is 0 $? 'standard error closed'
whole err 'standard error closed'
"$TESSERA" train base.yml $tiny run_name=all <&- >&- 2>&-
code_is 1 $? 'all streams closed'
whole all 'all streams closed'
"$TESSERA" generate --model "$(run_folder in)" --prompt a --max-new 2 >&- 2>"$err" </dev/null
code_is 1 $? 'generate, standard output closed'
"$TESSERA" --help >&- 2>"$err" </dev/null
code_is 1 $? '--help, standard output closed' && says err 'standard output could not be written'

# ---- a file that may not grow --------------------------------------------------------------------
# In blocks of 512 bytes, or of 1 KiB in some shells.
(ulimit -f 1 && exec "$TESSERA" train --help) >"$out" 2>"$err" </dev/null
code_is 1 $? 'ulimit -f, standard output' && says err 'standard output could not be written: File too large'
(
    ulimit -f 4 && exec "$TESSERA" train base.yml $tiny run_name=small steps=200 >/dev/null 2>"$err" </dev/null
)
code_is 1 $? 'ulimit -f, files of the run'
says err 'the file may not grow further (ulimit -f'
finish
