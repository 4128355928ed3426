#!/bin/sh
# tidy.sh: tools/tidy.sh finds what is planted, at its line, and accepts a clean tree. A style check
# that never fails checks nothing.
set -u
root=$PWD
tree=${TMPDIR:-/tmp}/tidy-tree
rm -rf "$tree"
mkdir -p "$tree/src/ir" "$tree/src/base" "$tree/src/cpu" "$tree/src/cli" "$tree/src/attic" "$tree/tools" "$tree/docs"
bad=0

# plant PATH EXPECTED <<text: the report for the tree with this file has the line, without it it is clean.
plant() {
    cat >"$tree/$1"
    if "$root/tools/tidy.sh" "$tree" >"$tree/report" 2>&1; then
        echo "not found: $2"
        bad=1
    elif ! grep -qF "$1:$2" "$tree/report"; then
        echo "expected $1:$2, got:"
        cat "$tree/report"
        bad=1
    fi
    rm -f "$tree/$1"
}
b='/* x.c – a planted file.
 *
 * Not here: anything else. */'

cat >"$tree/src/ir/clean.c" <<T
$b
#include "base/base.h"

static int f(void)
{
    return 0; /* free(x) */
}
T
printf '%s\nOP(neg, 1, PRIMITIVE, "-x")\n' "$b" >"$tree/src/ir/ops.def"
if ! "$root/tools/tidy.sh" "$tree" >"$tree/report" 2>&1; then
    echo "a clean tree is refused:"
    cat "$tree/report"
    bad=1
fi

plant src/ir/x.c '4: arrow:' <<T
$b
#include "cpu/fast.h"
T
plant src/cpu/x.c '4: arrow:' <<T
$b
#include "base/file_internal.h"
T
plant src/cli/x.c '4: arrow:' <<T
$b
#include "ir/graph.h"
T
plant src/attic/x.c '1: room:' <<T
$b
T
plant src/ir/x.c '1: banner:' <<T
int ts_x;
T
for call in 'strcpy(a, b)' 'sprintf(a, b)' 'atoi(a)' 'strtok(a, b)' 'gets(a)'; do
    plant src/ir/x.c '6: banned:' <<T
$b
static void f(char *a, char *b)
{
    $call;
}
T
done
plant src/ir/x.c '6: heap:' <<T
$b
static void f(void)
{ /* a string and a comment do not count: "malloc(" */
    char *p = malloc(3); /* x */
}
T
plant src/ir/x.c '6: prints:' <<T
$b
static void f(void)
{
    exit(1);
}
T
plant src/ir/x.c '6: files:' <<T
$b
static void f(void)
{
    fopen("a", "r");
}
T
plant src/ir/x.c '5: name:' <<T
$b
int helper(void)
{
    return 0;
}
T
plant src/ir/x.c '5: function:' <<T
$b
static int f(void)
{
$(i=0; while [ $i -lt 120 ]; do echo "    g($i);"; i=$((i + 1)); done)
}
T
plant src/ir/x.c '1504: file:' <<T
$b
$(i=0; while [ $i -lt 1501 ]; do echo "/* $i */"; i=$((i + 1)); done)
T
plant src/ir/x.c '4: columns:' <<T
$b
/* $(printf '%0118d' 1) */
T
plant src/ir/x.c '4: tab:' <<T
$b
$(printf '\tint x;')
T
plant src/ir/x.c '4: space:' <<T
$b
int ts_x;$(printf ' \n ')
T
plant src/ir/x.c '4: unfinished:' <<T
$b
/* TO$(printf DO): later */
T
plant docs/x.md '1: path:' <<T
see /wor$(printf 'k/')main
T
plant tools/x.sh '1: fastmath:' <<T
gcc -Ofa$(printf st) x.c
T
plant src/ir/ops.def '4: ops:' <<T
$b
OP(neg, 1, PRIMITIVE, "")
T

# An exception is accepted with a reason, and refused when nothing needs it.
printf '%s\nstatic void f(void)\n{\n    exit(1);\n}\n' "$b" >"$tree/src/ir/x.c"
echo 'prints src/ir/x.c exit because this test wants it' >"$tree/tools/tidy.allow"
if ! "$root/tools/tidy.sh" "$tree" >"$tree/report" 2>&1; then
    echo "an exception is not honoured:"
    cat "$tree/report"
    bad=1
fi
rm "$tree/src/ir/x.c"
"$root/tools/tidy.sh" "$tree" >"$tree/report" 2>&1 && { echo "a stale exception is accepted"; bad=1; }

exit $bad
