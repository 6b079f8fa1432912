#!/usr/bin/env bash
# Builds and runs the benchmarks. Every figure is a ratio to a reference measured in the same run: the median of several
# repetitions, and their spread.
#
#   bench/run.sh [--quick] [--repeat N] [--json FILE] [--dir DIR] [NAME…]    (--help lists the names and all options)
#   bench/run.sh growth --into docs/benchmarks.md           updates the table and the plot of that page
#   bench/run.sh fault-matrix --into docs/benchmarks.md     simulated faults, all families, about 40 minutes; one family:
#     bench/run.sh fault-matrix --family fsdp --fault sigstop,gpu-10%,none --behaviour base --seeds 30 --ranks 8,64
#   bench/run.sh torch --ranks 1,4 --into docs/benchmarks.md    compared with torch.save and torch's own checkpoints;
#                                                           HOLDFAST_DEEPSPEED=1 installs DeepSpeed and adds its writer
#
# Options and names may come in any order. The exit code does not depend on the ratios: 0, or 1 when a benchmark could not
# run or a name is unknown.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh
deploy/install-deps.sh --bench
cmake --preset bench >/dev/null
ninja -C build/bench --quiet >&2
exec build/bench/bin/holdfast-bench --dir build "$@"
