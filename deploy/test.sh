#!/usr/bin/env bash
# Installs the packages, builds and runs every test. Exits 0 only when every test passes at the first attempt. Tests
# that tests/flaky.txt lists may fail; they are shown.
#
#   deploy/test.sh             all tests, and the storage and arena tests under ASan and UBSan
#   deploy/test.sh --all       all parts, including the long ones, with a table; see --all --help
#   deploy/test.sh --sanitize  all tests under ASan and UBSan, then under TSan (--asan, --tsan: only one of them)
#   deploy/test.sh --lint      clang-format and clang-tidy on the complete tree, each header compiled alone
#   deploy/test.sh --build     builds the tests and runs none
set -euo pipefail
cd "$(dirname "$0")/.."
# One more than the processors: most tests spend their time waiting for processes.
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
  # The list contains tests that only the full build has.
  [ "$preset" != test ] || flaky=(--flaky tests/flaky.txt)
  local arguments=(--test-dir "build/$preset" --output-on-failure -j "$at_once" "$@")
  if command -v python3 >/dev/null; then
    python3 deploy/ctest.py "${flaky[@]}" -- "${arguments[@]}"
  else
    # Without Python the list of flaky tests is not read: all tests must pass.
    ctest "${arguments[@]}"
  fi
}

# Sanitizers make processes two to three times slower: run one test at a time, so that it meets its deadlines.
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
    deploy/install-deps.sh --ops || echo "Tests of operations that lack a package are skipped." >&2
    tests/compat/build_previous.sh >/dev/null || echo "Tests with the previous version are skipped." >&2
    build quick sanitizer_quick_tests
    run quick -L quick --no-tests=error
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
