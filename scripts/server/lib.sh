# What scripts that need a running server share; to be sourced from the root of the repository.

cache="${XDG_CACHE_HOME:-$HOME/.cache}/pleach/clients"
servers=()

# Versions are fixed so that a run tells of this repository alone.
python_packages=(openai==3.57.0 anthropic==2.14.0 jsonschema==4.26.0 schemathesis==4.32.5)
node_package=openai@7.59.0

# Prints the Python that has the packages.
client_python() {
  local stamp="$cache/python-${python_packages[*]}"
  if [ ! -e "$stamp" ]; then
    mkdir -p "$cache"
    python3 -m venv "$cache/venv"
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check "${python_packages[@]}" >&2
    touch "$stamp"
  fi
  echo "$cache/venv/bin/python"
}

# Prints the folder that has the package for Node.js; fails without npm.
client_node() {
  command -v npm >/dev/null || return 1
  local stamp="$cache/node-$node_package"
  if [ ! -e "$stamp" ]; then
    mkdir -p "$cache"
    npm install --silent --no-audit --no-fund --prefix "$cache" "$node_package" >&2
    touch "$stamp"
  fi
  echo "$cache"
}

# Prints the binary: that of PLEACH, or a new one.
pleach() {
  if [ -z "${PLEACH:-}" ]; then
    cargo build --quiet --package pleach-cli >&2
    PLEACH="${CARGO_TARGET_DIR:-target}/debug/pleach"
  fi
  echo "$PLEACH"
}

# serve MODEL [FLAGS]: starts a server on a free port and waits for it; sets `base`.
serve() {
  local binary log
  binary=$(pleach)
  log=$(mktemp)
  "$binary" serve --model "$1" --port 0 --log off "${@:2}" >"$log" &
  servers+=($!)
  for _ in $(seq 300); do
    base=$(sed -n 's/^listening on \(http[^ ]*\).*/\1/p' "$log")
    if [ -n "$base" ] && curl --silent --fail --output /dev/null "$base/health"; then
      rm "$log"
      return 0
    fi
    sleep 0.1
  done
  echo "the server with $1 did not start" >&2
  return 1
}

# Ends all servers that were started here.
stop() {
  for server in "${servers[@]}"; do
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  done
  servers=()
}
trap stop EXIT
