#!/usr/bin/env bash
# Checks the synchronization of the pool of threads with `loom`, which tries every order in which threads can meet.
#
# It has a target directory of its own, since its flag builds every dependency anew. Run it after each change to
# crates/kernels/src/cpu/pool.rs.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom RUSTFLAGS="--cfg loom"
cargo test --package pleach-kernels --release --lib cpu::pool
