#!/usr/bin/env bash
# Builds and runs the benchmarks. Every figure is a ratio to a reference measured in the same run.
#
#   bench/run.sh [--quick] [--json FILE] [--dir DIR] [NAME…]     (--help lists the names)
#   bench/run.sh growth --growth-into docs/benchmarks.md         table and plot, written there
#   bench/run.sh fault-matrix [--quick] [--seeds N] [--into docs/benchmarks.md]   simulated faults (see its --help)
#   bench/run.sh torch [--ranks 1,4] [--into docs/benchmarks.md] beside torch.save and torch's own checkpoints;
#                                    HOLDFAST_DEEPSPEED=1: and DeepSpeed's, which is installed and built for it
#
# Exit code 0 whatever the ratios; 1 when a benchmark could not run.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh
deploy/install-deps.sh --bench
cmake --preset release >/dev/null
ninja -C build/release --quiet >&2
if [ "${1:-}" = fault-matrix ]; then
  shift
  exec build/release/bin/holdfast-fault-matrix "$@"
fi
if [ "${1:-}" = torch ]; then
  shift
  tests/python/environment.sh "$(command -v python3.11 || command -v python3)" "$PWD/build/python-environment" \
    "$PWD/client/python" "$PWD/build/release/lib/libholdfast.so" >&2
  build/python-environment/bin/pip install --quiet --no-compile matplotlib safetensors >&2
  [ "${HOLDFAST_DEEPSPEED:-}" != 1 ] || bench/install-deepspeed.sh "$PWD/build" >&2
  export TORCH_EXTENSIONS_DIR=$PWD/build/torch-extensions DS_ACCELERATOR=cpu
  HOLDFAST_BIN_DIR=build/release/bin exec build/python-environment/bin/python bench/torch_bench.py "$@"
fi
exec build/release/bin/holdfast-bench --dir build "$@"
