#!/usr/bin/env bash
# Installs the packages, builds and runs every test.
#
#   deploy/test.sh             tests, and the storage and arena tests again under ASan and UBSan
#   deploy/test.sh --sanitize  ASan and UBSan over everything, TSan over storage, agent and client
#   deploy/test.sh --lint      clang-format and clang-tidy over the whole tree
set -euo pipefail
cd "$(dirname "$0")/.."
# Most tests wait for processes more than they compute.
at_once=$(($(nproc) + 1))

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  cmake --preset "$preset" >"/tmp/holdfast-configure.$$" 2>&1 ||
    { cat "/tmp/holdfast-configure.$$" >&2; exit 1; }
  rm -f "/tmp/holdfast-configure.$$"
  ninja -C "build/$preset" --quiet "$@"
}

# run PRESET [CTEST ARGUMENT...]
run() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" --output-on-failure -j "$at_once" "$@"
}

case "${1:-}" in
  "")
    deploy/install-deps.sh
    build asan sanitizer_quick_tests
    run asan -L quick --no-tests=error
    build test
    # Real processes that are killed on two busy cores: what fails runs once more, and the summary shows both.
    run test --no-tests=error --repeat until-pass:2
    ;;
  --sanitize)
    # Sanitizers make processes two to three times as slow: one test at a time keeps to its deadlines.
    at_once=1
    deploy/install-deps.sh
    build asan
    run asan --no-tests=error
    build tsan
    run tsan --no-tests=error
    ;;
  --lint)
    deploy/install-deps.sh
    deploy/install-deps.sh --lint
    exec deploy/lint.sh
    ;;
  *)
    sed -n '2,7p' "$0" >&2
    exit 64
    ;;
esac
