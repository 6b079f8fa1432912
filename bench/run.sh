#!/usr/bin/env bash
# Builds and runs the benchmarks. Every figure is a ratio to a reference measured in the same run, the median of several
# repetitions beside their spread.
#
#   bench/run.sh [--quick] [--repeat N] [--json FILE] [--dir DIR] [NAME…]    (--help lists the names and all options)
#   bench/run.sh growth --into docs/benchmarks.md           table and plot, written there
#   bench/run.sh fault-matrix --into docs/benchmarks.md     simulated faults, all families, about 40 minutes; one family:
#     bench/run.sh fault-matrix --family fsdp --fault sigstop,gpu-10%,none --behaviour base --seeds 30 --ranks 8,64
#   bench/run.sh torch --ranks 1,4 --into docs/benchmarks.md                 beside torch.save and torch's own checkpoints;
#                                                           HOLDFAST_DEEPSPEED=1: and DeepSpeed's, which is installed for it
#
# Options and names come in any order. Exit code 0 whatever the ratios; 1 when a benchmark could not run or a name is
# unknown.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh
deploy/install-deps.sh --bench
cmake --preset release >/dev/null
ninja -C build/release --quiet >&2
exec build/release/bin/holdfast-bench --dir build "$@"
