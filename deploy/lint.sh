#!/usr/bin/env bash
# Runs clang-format and clang-tidy on the complete tree and compiles each header alone. The first check that fails ends
# the script with a non-zero exit code.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files '*.h' '*.hpp' '*.cc' '*.c')
clang-format-14 --dry-run -Werror "${files[@]}"
echo "clang-format: ${#files[@]} files clean" >&2

cmake --preset dev -B build/lint -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_C_COMPILER=clang-14 >/dev/null
# Generated headers must exist before the sources that include them can be compiled.
ninja -C build/lint --quiet holdfast_coordinator_proto \
  holdfast_coordinator_metadata_proto holdfast_agent_proto
ninja -C build/lint --quiet header_checks
echo "headers: each compiles alone" >&2
mapfile -t sources < <(git ls-files 'storage/*.cc' 'agent/*.cc' 'coordinator/*.cc' 'client/*.cc' \
  'deploy/*.cc' 'tests/*.cc' 'bench/*.cc' | grep -v -e '^tests/fuzz/' -e '^client/cuda/' -e '^client/python/')
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy-14 -p build/lint --quiet \
  2> >(grep -v 'warnings generated' >&2)
echo "clang-tidy: ${#sources[@]} files clean" >&2
