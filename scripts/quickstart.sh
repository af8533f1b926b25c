#!/usr/bin/env bash
# From a fresh clone to an answer of the bundled model: builds, and asks.
#
#   scripts/quickstart.sh "Write a python function to merge two sorted lists"
#
# Words after the question are flags of `pleach`.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "building pleach: some minutes the first time, half an hour on a slow or busy machine" >&2
exec cargo run --release --package pleach-cli -- -m "${1:-Write a python function to merge two sorted lists}" "${@:2}"
