#!/bin/sh
# llama.sh: random small Llamas written by transformers; `tessera parity` and `tessera generate` on each must
# agree with it. PEERS_MODELS (16) says how many, PEERS_SEED (1) which.
set -eu
cd "$(dirname "$0")/../.."
. tests/peers/python.inc
"$python" tests/peers/llama.py "$work" "${PEERS_SEED:-1}" "${PEERS_MODELS:-16}"
