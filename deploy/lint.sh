#!/usr/bin/env bash
# Runs clang-format and clang-tidy on the complete tree and compiles each header alone. A check that fails shows all
# that it finds, and ends the script with a non-zero exit code.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files '*.h' '*.hpp' '*.cc' '*.c')
clang-format-14 --dry-run -Werror "${files[@]}"
echo "clang-format: ${#files[@]} files clean" >&2

# Clang's analyzer follows the paths of included sources only if the name of the unit, with its folder, contains
# "UnifiedSource".
build=build/UnifiedSource
cmake --preset dev -B "$build" -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_C_COMPILER=clang-14 \
  -DCMAKE_UNITY_BUILD=ON -DHOLDFAST_ROOM_CHECKS=OFF >/dev/null
# Generated headers must exist before the sources that include them can be compiled.
ninja -C "$build" -t targets all | grep -oP '^generated/.*\.pb\.h(?=:)' | xargs ninja -C "$build" --quiet
ninja -C "$build" --quiet -k 0 header_checks
echo "headers: each compiles alone" >&2

# Left out: what is compiled by the Python package, and a program that a test compiles.
not_checked=$(git ls-files '*.cc' '*.c' | grep -v -e ^client/python/ -e ^tests/client/core/consumer/ |
  sed "s,^,$PWD/," | sort | comm -23 - <(deploy/lint.py "$build" --sources))
[ -z "$not_checked" ] || { printf 'clang-tidy does not see these sources:\n%s\n' "$not_checked" >&2; exit 1; }
exec deploy/lint.py "$build"
