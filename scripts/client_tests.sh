#!/usr/bin/env bash
# The official clients against a real server: `openai` for Python and Node.js, `anthropic` for Python, and the lines for `curl`
# of docs/server.md, after the syntax of the page's scripts. Then 40 prompts with their JSON Schemas, whose answers another validator checks.
#
#   scripts/client_tests.sh            with a tiny random model and with the bundled one
#   scripts/client_tests.sh MODEL...   with these
#
# Needs Python 3 with venv; without Node.js its package is left out. Packages go into a cache folder, with their versions fixed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/server/lib.sh

clients=crates/server/tests/clients
python=$(client_python)
models=("$@")
[ $# -gt 0 ] || models=(fixtures/tiny-qwen35 models/pleach-mini)

if command -v node >/dev/null; then
  echo "== the scripts of the page at /, as far as they parse"
  for script in crates/server/src/page/*.js; do
    node --check "$script"
  done
fi

for model in "${models[@]}"; do
  serve "$model"
  echo "== openai for Python, $model"
  "$python" "$clients/openai_python.py" "$base"
  echo "== anthropic for Python, $model"
  "$python" "$clients/anthropic_python.py" "$base"
  if folder=$(client_node); then
    echo "== openai for Node.js, $model"
    # Packages are found from where the script is, not from where it runs.
    cp "$clients/openai_node.mjs" "$folder/"
    node "$folder/openai_node.mjs" "$base"
  else
    echo "== openai for Node.js: left out, there is no npm"
  fi
  echo "== the lines of docs/server.md, $model"
  "$python" "$clients/documented.py" "$base" docs/server.md
  stop
done

[ $# -eq 0 ] || exit 0
echo "== 40 prompts with JSON Schemas, models/pleach-mini"
serve models/pleach-mini
drafting=$base
serve models/pleach-mini --spec off
"$python" "$clients/schemas.py" "$drafting" "$base" training/prompts/json.jsonl
stop
