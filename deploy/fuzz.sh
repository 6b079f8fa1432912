#!/usr/bin/env bash
# Runs every fuzzer for ten minutes ($HOLDFAST_FUZZ_SECONDS) on a copy of its corpus, one per processor at a time.
# Inputs that make a fuzzer fail are written to build/fuzz/found and named in the output.
set -euo pipefail
cd "$(dirname "$0")/.."
deploy/install-deps.sh
deploy/install-deps.sh --lint
cmake --preset fuzz >/dev/null
ninja -C build/fuzz --quiet fuzzers
seconds=${HOLDFAST_FUZZ_SECONDS:-600}
mkdir -p build/fuzz/found build/fuzz/grown

fuzz() {
  local binary=$1 seconds=$2 name
  name=$(basename "$binary" _fuzzer)
  mkdir -p "build/fuzz/grown/$name"
  local dictionary=()
  [ -e "tests/fuzz/$name.dict" ] && dictionary=("-dict=tests/fuzz/$name.dict")
  if "$binary" "${dictionary[@]}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$name-" "build/fuzz/grown/$name" "tests/fuzz/corpus/$name" \
    >"build/fuzz/$name.log" 2>&1; then
    echo "$name: $(grep -m 1 number_of_executed_units "build/fuzz/$name.log" | awk '{print $2}') runs, no failure"
  else
    echo "$name: FAILED, see build/fuzz/$name.log and build/fuzz/found"
    tail -n 30 "build/fuzz/$name.log"
    return 1
  fi
}
export -f fuzz
find build/fuzz -name '*_fuzzer' -type f -perm -u+x | sort |
  xargs -P "$(nproc)" -I {} bash -c 'fuzz "$1" "$2"' fuzz {} "$seconds"
