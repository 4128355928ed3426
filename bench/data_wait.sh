#!/bin/sh
# data_wait.sh [MILLISECONDS…]: what of a step's time is spent waiting for data that lies on a mount whose every read takes
# so long (10 and 20 ms): shuffled text and packed rows, 60 steps each, with reading ahead and without. Fails where
# more than 1 % is waited with reading ahead. Needs the right to mount; exit 77 without it. BUILD=build.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 10 20
for ms in "$@"; do
    echo "reads take $ms ms"
    SLOW_DATA_MS=$ms SLOW_DATA_MOST=1 SLOW_DATA_STEPS=60 sh tests/e2e/slow_data.sh
done
