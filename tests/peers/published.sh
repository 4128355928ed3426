#!/bin/sh
# published.sh: random small Llamas in every form of files that published models have (f32, bf16,
# f16, shards, old and new config.json); `tessera parity` and `tessera generate` must agree with
# transformers on each.
# PEERS_MODELS (12) says how many, PEERS_SEED (1) which.
set -eu
cd "$(dirname "$0")/../.."
. tests/peers/python.inc
"$python" tests/peers/published.py "$work" "${PEERS_SEED:-1}" "${PEERS_MODELS:-12}"
