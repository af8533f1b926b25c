#!/usr/bin/env bash
# Schemathesis against a real server: requests made from /openapi.json, right ones and wrong ones, and whether each answer has a
# status and a content type that the description knows, and never 5xx.
#
#   scripts/api_fuzz.sh [EXAMPLES] [SEED]     examples of each operation [default: 100], where the drawing starts [default: 1]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/server/lib.sh

python=$(client_python)
serve fixtures/tiny-llama --parallel 2
# It keeps notes where it runs.
cd "$cache"
"$(dirname "$python")/schemathesis" run "$base/openapi.json" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --phases examples,coverage,fuzzing --max-examples "${1:-100}" --seed "${2:-1}" --workers 2 --generation-deterministic \
  --suppress-health-check all --request-timeout 60
