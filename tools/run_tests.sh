#!/bin/sh
# run_tests.sh [-j JOBS] [-t SECONDS] [-w WRAPPER] TEST…
#
# Runs each test in a process of its own, JOBS at a time, and ends with `N passed, N failed, N
# skipped`. A TEST is a cmocka program (counted test by test), a script NAME.sh (0 passed; 77
# skipped, the reason on its last line; anything else failed) or fuzz:PROGRAM, which replays
# tests/fuzz/corpus/NAME/*. A program that crashes, runs out of time or runs no test at all has
# failed. WRAPPER goes in front of every program (valgrind). Exit 0 when nothing failed.
#
# Tests see: TESSERA (the program), BUILD, TESSERA_SHARED (../shared by default), TMPDIR (a folder
# of their own, removed after a pass), OMP_NUM_THREADS. With RT_TOTALS=FILE the totals are appended
# there as "passed failed skipped".
set -u

# Reads a cmocka log: first line "passed failed skipped", then "F name" and "S name: reason". A test may
# run another cmocka program (one instruction set a process, say) whose lines stand inside its own: depth
# counts the programs, only the outermost one's tests are counted.
count_cmocka() {
    awk '
        function done() {
            if (depth == 1 && name[1] != "") {
                if (state == "ok") ok++
                else if (state == "skip") { skip++; list = list "S " name[1] ": " said "\n" }
                else { bad++; list = list "F " name[1] "\n" }
            }
            name[depth] = "" }
        function result(what, which,    d) {
            for (d = depth; d > 0 && name[d] != which; d--) {}
            if (d == 0) return # a summary line
            depth = d
            if (d == 1) state = what
            done() }
        /^\[==========\] .*Running [0-9]* test/ { depth++; name[depth] = ""; next }
        /^\[==========\] .*run\.$/ { done(); if (depth > 0) depth--; next }
        /^\[ RUN      \]/ { done(); name[depth] = $4; if (depth == 1) { state = "bad"; said = "no reason given" } next }
        /^\[       OK \]/ { result("ok", $4); next }
        /^\[  SKIPPED \]/ { result("skip", $4); next }
        /^\[  FAILED  \]/ { result("bad", $4); next }
        /^\[/ || /^ *$/ { next }
        { said = $0 }
        END { while (depth > 1) { done(); depth-- } done(); printf "%d %d %d\n%s", ok, bad, skip, list }' "$1"
}

# One test: its log, and a .res file in the form of count_cmocka; prints its line when it is done.
run_one() {
    item=$1
    case $item in
        fuzz:*) program=${item#fuzz:}; kind=fuzz ;;
        *.sh) program=$item; kind=script ;;
        *) program=$item; kind=cmocka ;;
    esac
    name=${program#"$BUILD"/}
    slot=$RT_DIR/$(printf %s "$name" | tr / _)
    log=$slot.log
    mkdir -p "$slot.tmp"
    export TMPDIR="$slot.tmp"
    began=$(date +%s%N)
    if [ $kind = fuzz ]; then
        corpus=tests/fuzz/corpus/${program##*/fuzz_}
        set -- "$corpus"/*
        if [ ! -e "$1" ]; then
            printf '0 0 1\nS replay: %s is empty\n' "$corpus" >"$slot.res"
            printf 'skip  %-36s nothing in %s\n' "$name" "$corpus"
            return
        fi
        set -- "$program" "$@"
    elif [ $kind = script ]; then
        set -- sh "$program"
    else
        set -- "$program"
    fi
    case $program in /*) ;; *) [ $kind = script ] || { shift; set -- "./$program" "$@"; } ;; esac
    [ $kind = script ] && wrapper= || wrapper=$RT_WRAPPER
    # In the background, so that Ctrl-C can be passed on: timeout(1) leads a process group of its
    # own. shellcheck disable=SC2086
    timeout -k 10 "$RT_LIMIT" $wrapper "$@" >"$log" 2>&1 </dev/null &
    child=$!
    trap 'kill $child 2>/dev/null; exit 130' INT TERM HUP
    wait $child
    rc=$?
    took=$(awk -v a="$began" -v b="$(date +%s%N)" 'BEGIN { printf "%.1f s", (b - a) / 1e9 }')

    if [ $kind = cmocka ]; then
        count_cmocka "$log" >"$slot.res"
    elif [ $rc = 0 ]; then
        echo "1 0 0" >"$slot.res"
    elif [ $rc = 77 ] && [ $kind = script ]; then
        printf '0 0 1\nS script: %s\n' "$(tail -n 1 "$log")" >"$slot.res"
    else
        printf '0 1 0\nF %s\n' "$kind" >"$slot.res"
    fi
    read -r ok bad skip <"$slot.res"
    why=
    if [ $rc = 124 ] || [ $rc = 137 ]; then
        why="stopped after $RT_LIMIT s"
    elif [ $kind = cmocka ] && [ $rc != 0 ] && [ "$bad" = 0 ]; then
        why="exit $rc"
    elif [ $((ok + bad + skip)) = 0 ]; then
        why="ran no test"
    fi
    if [ -n "$why" ] && [ "$bad" = 0 ]; then
        bad=1
        { echo "$ok 1 $skip"; sed 1d "$slot.res"; echo "F $why"; } >"$slot.new" && mv "$slot.new" "$slot.res"
    fi
    if [ "$bad" != 0 ]; then
        line=$(printf 'FAIL  %-36s %s failed, %s passed  %s  %s' "$name" "$bad" "$ok" "$took" "$why")
        body=$(tail -n "${RT_LINES:-80}" "$log" | sed 's/^/      | /')
        printf '%s\n' "$line${body:+
$body}" # one write: what ends at the same time does not mix
        return
    fi
    rm -rf "$slot.tmp"
    if [ "$ok" = 0 ]; then
        printf 'skip  %-36s %s\n' "$name" "$(sed -n '2s/^S [^:]*: //p' "$slot.res")"
    else
        printf 'ok    %-36s %s passed%s  %s\n' "$name" "$ok" "$([ "$skip" = 0 ] || echo ", $skip skipped")" "$took"
    fi
}

if [ "${1-}" = --one ]; then
    run_one "$2"
    exit 0
fi

jobs=1 RT_LIMIT=300 RT_WRAPPER=
while getopts j:t:w: option; do
    case $option in
        j) jobs=$OPTARG ;;
        t) RT_LIMIT=$OPTARG ;;
        w) RT_WRAPPER=$OPTARG ;;
        *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

BUILD=${BUILD:-build}
RT_DIR=$(mktemp -d "${TMPDIR:-/tmp}/tessera-tests.XXXXXX") || exit 1
case $BUILD in /*) TESSERA=$BUILD/tessera ;; *) TESSERA=$PWD/$BUILD/tessera ;; esac
export BUILD RT_DIR RT_LIMIT RT_WRAPPER TESSERA
export TESSERA_SHARED="${TESSERA_SHARED:-../shared}"
# Several tests share the cores: two threads each find races, a passive wait keeps them from
# spinning.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$(pwd)/tools/lsan.supp:print_suppressions=0}"
trap 'rm -rf "$RT_DIR"; exit 130' INT TERM HUP

[ $# -eq 0 ] || printf '%s\n' "$@" | xargs -n 1 -P "$jobs" "$0" --one

passed=0 failed=0 skipped=0
for item in "$@"; do
    program=${item#fuzz:}
    name=${program#"$BUILD"/}
    res=$RT_DIR/$(printf %s "$name" | tr / _).res
    if [ ! -s "$res" ]; then
        echo "F not run" >"$RT_DIR/none"
        res=$RT_DIR/none ok=0 bad=1 skip=0
    else
        read -r ok bad skip <"$res"
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    sed -n "s|^F |$name: |p" "$res" >>"$RT_DIR/failed"
    sed -n "s|^S |$name: |p" "$res" >>"$RT_DIR/skipped"
done
if [ -s "$RT_DIR/skipped" ]; then
    echo
    echo "Skipped, and why:"
    # One line a reason, however many tests gave it.
    awk '{ where = $1 " " $2; why = $0; sub(/^[^ ]+ [^ ]+ /, "", why)
           if (!(why in n)) { order[++k] = why; first[why] = where }
           n[why]++ }
         END { for (i = 1; i <= k; i++) { w = order[i]; sub(/:$/, "", first[w])
               printf "  %s%s: %s\n", first[w], (n[w] > 1 ? " and " n[w] - 1 " more" : ""), w } }' "$RT_DIR/skipped"
fi
if [ -s "$RT_DIR/failed" ]; then
    echo
    echo "Failed:"
    sed 's/^/  /' "$RT_DIR/failed"
    echo "  (logs: $RT_DIR)"
else
    rm -rf "$RT_DIR"
fi
[ -z "${RT_TOTALS-}" ] || echo "$passed $failed $skipped" >>"$RT_TOTALS"
echo
printf '%s passed, %s failed%s\n' "$passed" "$failed" "$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
[ "$failed" = 0 ]
