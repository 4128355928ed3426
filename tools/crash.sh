#!/bin/sh
# crash.sh TEST… – the crash tests in their full form (make crash), one after another, and their figures as a table.
#
# Each TEST is a cmocka program of tests/crash; TESSERA_CRASH=full makes it whole, and lines "figure: TEST: WHAT: NUMBER"
# are what it says of itself. TESSERA_CRASH_SEED repeats the random choices of an earlier run. Exit 0 when all passed.
set -u

logs=$(mktemp -d "${TMPDIR:-/tmp}/tessera-crash.XXXXXX") || exit 1
trap 'exit 130' INT TERM HUP
export TESSERA_CRASH=full TMPDIR="$logs/tmp"
failed=0
began=$(date +%s)
for program in "$@"; do
    name=${program##*/}
    log=$logs/$name.log
    mkdir -p "$TMPDIR"
    if "$program" >"$log" 2>&1; then how=passed; else how=FAILED failed=$((failed + 1)); fi
    printf '%s: %s\n' "$name" "$how"
    sed -n '/^seed: /s/^/  /p' "$log"
    sed -n 's/^SKIP: /  skipped: /p' "$log"
    [ $how = passed ] || tail -n 20 "$log" | sed 's/^/  | /'
done
rm -rf "$TMPDIR"
printf '\n%s, %s, %s cores\n\n' "$(date -u +%Y-%m-%d)" "$(uname -sr)" "$(nproc)"
cat "$logs"/*.log | awk -F ': ' '
    /^figure: / { printf "| %-14s | %-64s | %9s |\n", ($2 == last ? "" : $2), $3, $4; last = $2 }'
printf '\n%s s in all, %s failed\n' "$(($(date +%s) - began))" "$failed"
[ "$failed" = 0 ] && rm -rf "$logs" || echo "logs: $logs"
[ "$failed" = 0 ]
