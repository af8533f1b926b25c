#!/usr/bin/env bash
# Builds and tests the kernels for 64-bit Arm on an x86-64 Debian machine, under emulation.
#
#   scripts/arm64.sh                     # the tests that CI runs
#   scripts/arm64.sh nextest run -p ...  # any cargo command, for Arm
#
# The first run unpacks a compiler with the Arm standard library, a linker and an emulator from Debian's packages into
# .cache/arm64; nothing is installed on the system.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD/.cache/arm64
target=aarch64-unknown-linux-gnu
rust_version=1.96.0+dfsg1-1~deb12u2

# An apt tool with package lists and a cache of its own, for both architectures.
apt() {
  local tool=$1
  shift
  "$tool" -qq -oDir::Etc::SourceList=/dev/null -oDir::Etc::SourceParts="$root/apt/sources" \
    -oDir::State::Lists="$root/apt/lists" -oDir::Cache="$root/apt/cache" -oAPT::Sandbox::User=root \
    -oAPT::Architecture=amd64 -oAPT::Architectures::=amd64 -oAPT::Architectures::=arm64 "$@"
}

fetch_packages() {
  rm -rf "$root"
  mkdir -p "$root"/apt/{sources,lists/partial,cache/archives/partial} "$root/debs"
  # Of the system's package sources only Debian's own: others may not have both architectures.
  grep -rl --include='*.list' --include='*.sources' debian-archive-keyring /etc/apt | xargs cp -t "$root/apt/sources"
  apt apt-get update
  # The compiler, the standard library of both architectures (build scripts run here), a linker, an emulator.
  (cd "$root/debs" && apt apt-get download \
    {rustc-web,libstd-rust-web-dev,libstd-rust-web-1.96}="$rust_version" libstd-rust-web-dev:arm64="$rust_version" \
    libllvm22 libedit2 libbsd0 libmd0 libz3-4 libxml2 libicu72 {binutils,gcc-12,gcc}-aarch64-linux-gnu libbinutils libc6-arm64-cross libc6-dev-arm64-cross libgcc-s1-arm64-cross \
    libgcc-12-dev-arm64-cross qemu-user-static)
}

unpack_packages() {
  for package in "$root"/debs/*.deb; do
    dpkg -x "$package" "$root"
  done
  rm -rf "$root/debs" "$root/apt"
  find "$root/usr/bin" -name 'qemu-*' ! -name qemu-aarch64-static -delete
  # The linker's script of the C library names its parts by absolute paths.
  sed -i "s|/usr/aarch64-linux-gnu/lib/||g" "$root/usr/aarch64-linux-gnu/lib/libc.so"
  touch "$root/complete"
}

if [[ ! -e $root/complete ]]; then
  if [[ $(uname -m) != x86_64 ]] || ! command -v apt-get dpkg >/dev/null; then
    echo "error: this needs an x86-64 machine with Debian's apt-get and dpkg" >&2
    exit 1
  fi
  echo "fetching the Arm toolchain from Debian's packages" >&2
  fetch_packages
  unpack_packages
fi

export RUSTC=$root/usr/bin/rustc
export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu
# What an interrupted build leaves behind must not meet the next one.
export CARGO_INCREMENTAL=0
export CARGO_BUILD_TARGET=$target
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/arm64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$root/usr/bin/aarch64-linux-gnu-gcc-12
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$root/usr/bin/qemu-aarch64-static -cpu max -L $root/usr/aarch64-linux-gnu"

# Tests skip instructions that a machine lacks; the emulator has all of them.
export PLEACH_TEST_SETS="scalar,NEON dotprod,NEON i8mm"

if (($# == 0)); then
  set -- nextest run -p pleach-kernels
fi
exec cargo "$@"
