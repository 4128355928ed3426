#!/bin/sh
# tidy.sh [FOLDER]: style as a test. Which room may include which, lengths, banned functions,
# unfinished work. The rules are in tidy.awk, the exceptions with their reasons in tidy.allow. Needs
# a shell and awk. Exit 1 on an error.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/..}" || exit 2

allow=tools/tidy.allow
[ -f "$allow" ] || allow=/dev/null
find . \( -name .git -o -path './build*' -o -path ./demo_output -o -path ./runs -o -path ./maxtext_output \
    -o -path ./tests/fuzz/corpus -o -path './tests/*/data' \) -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cc' -o -name '*.def' -o -name '*.sh' -o -name '*.awk' -o -name '*.py' \
    -o -name '*.yml' -o -name '*.md' -o -name Makefile -o -path ./demo -o -path ./check -o -path ./.ci/run \) -print |
    LC_ALL=C sort >"${TMPDIR:-/tmp}/tidy.$$"
trap 'rm -f "${TMPDIR:-/tmp}/tidy.$$"' EXIT

rc=0
LC_ALL=C xargs awk -v allow="$allow" -f "$here/tidy.awk" <"${TMPDIR:-/tmp}/tidy.$$" || rc=1
grep -E '\.sh$|^\./(demo|check|\.ci/run)$' "${TMPDIR:-/tmp}/tidy.$$" | while read -r script; do
    sh -n "$script" || exit 1
done || rc=1
exit $rc
