#!/usr/bin/env bash
# Installs the packages, builds and runs every test. Exits 0 only when every test passed the first time; tests
# that tests/flaky.txt lists may fail, and are shown.
#
#   deploy/test.sh             tests, and the storage and arena tests again under ASan and UBSan
#   deploy/test.sh --all       that and all that it leaves out, with a table; --all --help says more
#   deploy/test.sh --sanitize  ASan and UBSan over everything, then TSan (--asan, --tsan: one of them)
#   deploy/test.sh --lint      clang-format and clang-tidy over the whole tree, each header compiled alone
#   deploy/test.sh --build     builds the tests and runs none
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
  local flaky=()
  # The list names tests that only the full build has.
  [ "$preset" != test ] || flaky=(--flaky tests/flaky.txt)
  local arguments=(--test-dir "build/$preset" --output-on-failure -j "$at_once" "$@")
  if command -v python3 >/dev/null; then
    python3 deploy/ctest.py "${flaky[@]}" -- "${arguments[@]}"
  else
    # Without Python no list of flaky tests is read: each of them has to pass.
    ctest "${arguments[@]}"
  fi
}

# Sanitizers make processes two to three times as slow: one test at a time keeps to its deadlines.
asan() {
  at_once=1
  build asan
  run asan --no-tests=error
}

tsan() {
  at_once=1
  build tsan
  TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp ${TSAN_OPTIONS:-}" run tsan --no-tests=error
}

case "${1:-}" in
  "")
    deploy/install-deps.sh
    build asan sanitizer_quick_tests
    run asan -L quick --no-tests=error
    build test
    run test --no-tests=error
    ;;
  --all)
    deploy/install-deps.sh
    exec python3 deploy/all.py "${@:2}"
    ;;
  --build)
    deploy/install-deps.sh
    build test
    ;;
  --sanitize)
    deploy/install-deps.sh
    code=0
    deploy/test.sh --asan || code=1
    deploy/test.sh --tsan || code=1
    exit "$code"
    ;;
  --asan | --tsan)
    deploy/install-deps.sh
    "${1#--}"
    ;;
  --lint)
    deploy/install-deps.sh
    deploy/install-deps.sh --lint
    exec deploy/lint.sh
    ;;
  *)
    sed -n '2,9p' "$0" >&2
    exit 64
    ;;
esac
