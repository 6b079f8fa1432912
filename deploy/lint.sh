#!/usr/bin/env bash
# Runs clang-format and clang-tidy on the complete tree and compiles each header alone. A check that fails shows all
# that it finds, and ends the script with a non-zero exit code.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files '*.h' '*.hpp' '*.cc' '*.c')
clang-format-14 --dry-run -Werror "${files[@]}"
echo "clang-format: ${#files[@]} files clean" >&2

# As in preset test, a unit has several sources: clang-tidy reads the headers that they share only once. Clang's analyzer
# follows the paths of included sources only if the name of the unit, with its folder, contains "UnifiedSource".
build=build/UnifiedSource
cmake --preset dev -B "$build" -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_C_COMPILER=clang-14 \
  -DCMAKE_UNITY_BUILD=ON -DHOLDFAST_ROOM_CHECKS=OFF >/dev/null
# Generated headers must exist before the sources that include them can be compiled.
ninja -C "$build" -t targets all | grep -oP '^generated/.*\.pb\.h(?=:)' | xargs ninja -C "$build" --quiet
ninja -C "$build" --quiet -k 0 header_checks
echo "headers: each compiles alone" >&2

mapfile -t units < <(grep -oP '"file": "\K[^"]+' "$build/compile_commands.json" |
  grep -v -e '_proto\.dir/' -e /header_check/)
sources=$({ printf '%s\n' "${units[@]}" | grep -v /Unity/; grep -hoP '#include "\K[^"]+' "${units[@]}"; } | sort -u)
# Left out: what is compiled by the Python package, and a program that a test compiles.
not_checked=$(git ls-files '*.cc' '*.c' | grep -v -e ^client/python/ -e ^tests/client/core/consumer/ |
  sed "s,^,$PWD/," | sort | comm -23 - <(echo "$sources"))
[ -z "$not_checked" ] || { printf 'clang-tidy does not see these sources:\n%s\n' "$not_checked" >&2; exit 1; }
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy-14 -p "$build" --quiet \
  2> >(grep -v 'warnings generated' >&2)
echo "clang-tidy: ${#units[@]} units clean" >&2
