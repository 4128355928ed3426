#!/bin/sh
# checkpoint.sh: what Tessera trained and saved loads into transformers, tensor by tensor, and has
# the same loss there on the same tokens.
set -eu
cd "$(dirname "$0")/../.."
. tests/peers/python.inc
"$python" tests/peers/checkpoint.py "$work"
