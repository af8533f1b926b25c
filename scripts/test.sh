#!/usr/bin/env bash
# All tests of the workspace. Fetches the small real model that some of them run.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fetch-model.sh >/dev/null
if ! cargo nextest --version >/dev/null 2>&1; then
  cargo install --locked cargo-nextest --version 0.9.143
fi
cargo nextest run --workspace "$@"
cargo test --quiet --workspace --doc
