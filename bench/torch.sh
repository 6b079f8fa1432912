#!/usr/bin/env bash
# Runs torch_bench.py in the environment of the Python tests. `bench/run.sh torch` calls it after the build.
set -euo pipefail
cd "$(dirname "$0")/.."

tests/python/environment.sh "$(command -v python3.11 || command -v python3)" "$PWD/build/python-environment" \
  "$PWD/client/python" "$PWD/build/bench/lib/libholdfast.so"
build/python-environment/bin/pip install --quiet --no-compile matplotlib safetensors
[ "${HOLDFAST_DEEPSPEED:-}" != 1 ] || bench/install-deepspeed.sh "$PWD/build"
export TORCH_EXTENSIONS_DIR=$PWD/build/torch-extensions DS_ACCELERATOR=cpu
HOLDFAST_BIN_DIR=build/bench/bin exec build/python-environment/bin/python bench/torch_bench.py "$@"
