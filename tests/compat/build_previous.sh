#!/usr/bin/env bash
# Builds the programs and the client library of the previous version, the commit in the file `previous`, and prints
# their folder. Builds once for each commit and user:
#
#   tests/compat/build_previous.sh          builds if needed
#   tests/compat/build_previous.sh --find   only prints the folder; exit 77: not built yet
#
# $HOLDFAST_PREVIOUS_DIR is the folder of all built versions, by default ~/.cache/holdfast/previous.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
commit=$(cat "$here/previous")
base=${HOLDFAST_PREVIOUS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/previous}
folder=$base/$commit
if [ -x "$folder/bin/holdfast" ]; then
  echo "$folder"
  exit 0
fi
if [ "${1:-}" = --find ]; then
  echo "the previous version ($commit) is not built: run tests/compat/build_previous.sh" >&2
  exit 77
fi
git -C "$here" cat-file -e "$commit^{commit}" 2>/dev/null || {
  echo "the previous version ($commit) is not in this repository's history: fetch the complete history" >&2
  exit 77
}
mkdir -p "$base"
exec 9>"$base/lock"
flock 9
if [ ! -x "$folder/bin/holdfast" ]; then
  work=$(mktemp -d "$base/build.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/source"
  git -C "$here/../.." archive "$commit" | tar -x -C "$work/source"
  # No test measures these programs, and without optimisation they are built sooner.
  cmake -S "$work/source" --preset release "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
  ninja -C "$work/source/build/release" --quiet >&2
  cmake --install "$work/source/build/release" --strip --prefix "$work/built" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
  mv "$work/built" "$folder"
fi
echo "$folder"
