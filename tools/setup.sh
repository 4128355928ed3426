#!/bin/sh
# setup.sh [build | check | ci | dev]: installs the Debian packages that a set needs and does
# nothing when all are there.
#
#   build   what `make` needs: the compiler and the libraries            (the default)
#   check   build, and what the tests need; pip, which fetches a plugin, is wished for only
#   ci      check, and clang with its sanitizers                         (./check with CI=true)
#   dev     ci, and valgrind and clang-format
#
# As root it installs; with sudo it asks sudo; otherwise it names the packages and the command.
# Looks at dpkg's own records first: instant and without a network when nothing is missing.
set -eu

build="gcc libc6-dev make pkg-config libdnnl-dev libjansson-dev libyaml-dev libxxhash-dev zlib1g-dev"
build="$build libzstd-dev libutf8proc-dev libminizip-dev"
check="$build libcmocka-dev python3-pip"
ci="$check clang libclang-rt-dev libomp-dev"
case ${1-build} in
    build) want=$build ;;
    check) want=$check ;;
    ci) want=$ci ;;
    dev) want="$ci valgrind clang-format" ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

# Not a Debian: the package names mean nothing here, but what they bring may well be there.
if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    if command -v gcc >/dev/null && command -v make >/dev/null && command -v pkg-config >/dev/null &&
        pkg-config --exists jansson yaml-0.1 libxxhash zlib libzstd libutf8proc minizip; then
        exit 0
    fi
    echo "tessera: this system has no apt, and gcc, make, pkg-config or a library is missing." >&2
    echo "On Debian these packages bring them: $want." >&2
    echo "Install their counterparts here, then run make." >&2
    exit 1
fi

# shellcheck disable=SC2016,SC2086
there=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $want 2>/dev/null | sed -n 's/ installed$//p') || true
missing=
for package in $want; do
    printf '%s\n' "$there" | grep -qxF "$package" || missing="$missing $package"
done
missing=${missing# }
[ -n "$missing" ] || exit 0

# All but pip can be done without pip.
only_pip_is_missing() {
    [ "$missing" = python3-pip ] || return 1
    echo "python3-pip cannot be installed here: what needs a plugin will be skipped."
}

install="apt-get install -y --no-install-recommends $missing"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root="sudo"
else
    only_pip_is_missing && exit 0
    echo "tessera: packages are missing and this user may not install them. As root, run:" >&2
    echo "  apt-get update && $install" >&2
    exit 1
fi

echo "Installing $(echo "$missing" | wc -w) Debian packages: $missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM HUP
run() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" \
        >"$log" 2>&1
}
# Package lists may be old or absent: try, refresh, try again.
# shellcheck disable=SC2086
if ! run install -y --no-install-recommends $missing; then
    if ! run update || ! run install -y --no-install-recommends $missing; then
        only_pip_is_missing && exit 0
        tail -n 20 "$log" >&2
        echo "tessera: apt-get could not install them (its last lines are above). The command was:" >&2
        echo "  ${as_root:+$as_root }$install" >&2
        exit 1
    fi
fi
