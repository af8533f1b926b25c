#!/usr/bin/env bash
# Lints, types and tests of training/, at toy size on the CPU. The packages that it pins take some gigabytes, so they stay in a
# virtual environment in the user's cache until the pins change.
set -euo pipefail
cd "$(dirname "$0")/../training"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pleach
pins=$(python3 - <<'PY'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print("\n".join(project["dependencies"] + project["optional-dependencies"]["dev"]))
PY
)
venv=$cache/training-$(sha256sum <<<"$pins" | head -c 12)
if [[ ! -e $venv/complete ]]; then
  rm -rf "$cache"/training-*
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --retries 8 --timeout 60 -r <(cat <<<"$pins")
  touch "$venv/complete"
fi

"$venv/bin/ruff" check --no-cache .
"$venv/bin/ruff" format --check --no-cache .
"$venv/bin/mypy" --cache-dir "$venv/mypy" pleach_training
"$venv/bin/python" -m pytest -q -p no:cacheprovider
