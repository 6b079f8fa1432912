#!/bin/sh
# Installs the client library into a temporary folder, builds a C and a C++ program against it with
# find_package, runs them, and checks the library's exported symbols and dependencies.
# Usage: install_test.sh <build folder> <folder with the programs' sources> <cmake> [<sanitizers>]
set -eu
build=$1 source=$2 cmake=$3
# Programs that use a sanitized library must be sanitized themselves.
flags=${4:+-fsanitize=$4}
work=$(mktemp -d "${TMPDIR:-/tmp}/hf-install-XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() { echo "install_test: $*" >&2; exit 1; }

"$cmake" --install "$build" --component client --prefix "$work/prefix" >"$work/log" 2>&1 ||
  { cat "$work/log"; fail "installing failed"; }
headers=$(cd "$work/prefix" && find . -name '*.h*' | sort | tr '\n' ' ')
[ "$headers" = "./include/holdfast/holdfast.h ./include/holdfast/holdfast.hpp " ] ||
  fail "installed headers are: $headers"

"$cmake" -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" >"$work/log" 2>&1 &&
  "$cmake" --build "$work/build" >>"$work/log" 2>&1 ||
  { cat "$work/log"; fail "a program that uses find_package(holdfast) does not build"; }
HOLDFAST_SOCKET="$work/none.sock" "$work/build/consumer_c" || fail "the C program failed"
HOLDFAST_SOCKET="$work/none.sock" "$work/build/consumer_cpp" || fail "the C++ program failed"

library=$(find "$work/prefix" -name 'libholdfast.so.?' | head -n 1)
[ -n "$library" ] || fail "no libholdfast.so.<major> installed"
plugin=$(find "$work/prefix" -name 'libnccl-profiler-holdfast.so' | head -n 1)
[ -n "$plugin" ] || fail "no NCCL profiler plugin installed"
missing=$(ldd "$plugin" | grep 'not found' || true)
[ -z "$missing" ] || fail "the NCCL profiler plugin does not find $missing"
# Sanitizers add further symbols and libraries.
if ! nm -D "$library" | grep -q '__asan\|__tsan'; then
  shown=$(nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^holdfast_\|^HOLDFAST_' || true)
  [ -z "$shown" ] || fail "symbols that are none of a user's business: $shown"
  needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
  for name in $needed; do
    case $name in
      libc.so.*|libm.so.*|libstdc++.so.*|libgcc_s.so.*|libfmt.so.*|libisal.so.*|ld-linux*) ;;
      *) fail "needs $name" ;;
    esac
  done
fi
