# fuse_help.sh – what tests on a slow mount, or on one that behaves as an object store's, share: sourced instead of
# cli_help.sh, which it sources itself.
#
# The test runs again in a mount namespace of its own, so that nobody else sees its mounts and none is left behind,
# however it ends: the file system (tests/fuse/slowfs.c) goes with the shell that started it. Where the kernel or the
# container allows no such mount, the test is skipped with the reason.

slowfs=${SLOWFS:-$(cd "$(dirname "$0")/../.." && pwd)/${BUILD:-build}/tests/fuse/slowfs}
[ -x "$slowfs" ] || { echo "$slowfs is not built"; exit 1; }
if [ -z "${SLOWFS_NAMESPACE:-}" ]; then
    [ "$(id -u)" = 0 ] && become= || become=-r
    if ! why=$(unshare $become -m true 2>&1); then
        echo "no mount namespace can be made here: $why"
        exit 77
    fi
    SLOWFS_NAMESPACE=1
    export SLOWFS_NAMESPACE
    exec unshare $become -m sh "$0" "$@"
fi
. "$(dirname "$0")/../cli_help.sh"

mounts=
is_mounted() { [ "$(stat -f -c %t "$1" 2>/dev/null)" = 65735546 ]; }

# mount_slow FOLDER MOUNTPOINT OPTION=VALUE…
mount_slow() {
    mkdir -p "$1" "$2"
    at=$2
    "$slowfs" "$@" >"$work/slowfs.out" 2>&1 &
    slowfs_pid=$!
    for tries in $(seq 100); do
        if is_mounted "$at"; then
            mounts="$slowfs_pid $mounts"
            return 0
        fi
        kill -0 $slowfs_pid 2>/dev/null || break
        sleep 0.05
    done
    wait $slowfs_pid
    code=$?
    if [ $code = 77 ]; then
        cat "$work/slowfs.out"
        rm -rf "$work"
        exit 77
    fi
    fail "slowfs ended with $code" "$(cat "$work/slowfs.out")"
    exit 1
}

unmount_slow() {
    for pid in $mounts; do
        kill "$pid" 2>/dev/null
        wait "$pid"
    done
    mounts=
}

finish_slow() {
    unmount_slow
    finish
}
