#!/usr/bin/env bash
# The page at `/` in headless Chromium, before a real server with the bundled model.
#
#   scripts/web_page_test.sh [FOLDER]     puts screenshots into FOLDER [default: target/web_page]
#
# Needs Chromium (Debian's package `chromium`) and Node.js with npm. It is too heavy for every run of continuous integration;
# what the server sends is tested there.
set -euo pipefail
cd "$(dirname "$0")/.."
chromium=$(command -v "${CHROMIUM:-chromium}") || { echo "no Chromium: install it, or say where it is in CHROMIUM" >&2; exit 1; }
target="${CARGO_TARGET_DIR:-target}"
pictures="${1:-$target/web_page}"
tools="${XDG_CACHE_HOME:-$HOME/.cache}/pleach/web_page"
mkdir -p "$pictures" "$tools"
if [ ! -d "$tools/node_modules/playwright-core" ]; then
  npm install --silent --no-audit --no-fund --prefix "$tools" playwright-core@1.65.1
fi
if [ -z "${PLEACH:-}" ]; then
  cargo build --quiet --package pleach-cli
  PLEACH="$target/debug/pleach"
fi
NODE_PATH="$tools/node_modules" exec node scripts/web_page/test.cjs "$PLEACH" "$chromium" "$pictures"
