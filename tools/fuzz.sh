#!/bin/sh
# fuzz.sh SECONDS JOBS FUZZER…: runs each libFuzzer program for SECONDS, JOBS at a time. New inputs
# that reach new code go to $BUILD's corpus/NAME; an input that breaks something is written to
# crash-* there and named. Such a file, shrunk (FUZZER -minimize_crash=1 FILE), goes into
# tests/fuzz/corpus/NAME: it is then a test, and the fix starts. Exit 1 when something broke.
set -u
seconds=$1 jobs=$2
shift 2
[ $# -gt 0 ] || { echo "fuzz.sh: there is no fuzz target" >&2; exit 2; }
work=${1%/tests/fuzz/*}/corpus
printf '%s\n' "$@" | xargs -n 1 -P "$jobs" sh -c '
    name=${3##*/fuzz_}
    found=$1/$name
    mkdir -p "$found"
    if "$3" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$found/" "$found" tests/fuzz/corpus/"$name" >"$found.log" 2>&1; then
        echo "ok    $name: $(sed -n "s/^stat::number_of_executed_units: //p" "$found.log") inputs"
    else
        echo "FAIL  $name"
        tail -n 25 "$found.log" | sed "s/^/      | /"
        exit 1
    fi' fuzz "$work" "$seconds"
