#!/usr/bin/env bash
# Installs the packages, builds, and runs the demo on this machine: a coordinator, four node agents and a
# training job of four ranks that checkpoints every step. The demo injects one failure after another.
# The exit code is 0 only if the final parameters are bit-identical to those of an uninterrupted run.
#
#   deploy/demo.sh [--json FILE] [--drill NAME]... [--steps N] [--keep]
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh
# The test preset compiles crash points in, which installed builds never have: some drills end a process at one.
cmake --preset test >build.log 2>&1 || { cat build.log >&2; exit 1; }
rm -f build.log
echo "Building (a few minutes the first time)" >&2
ninja -C build/test --quiet holdfast-demo holdfast-coordinator holdfast-agent holdfast-keeper \
  holdfast-shim holdfast-fault holdfast holdfast-charlm >&2
exec build/test/bin/holdfast-demo "$@"
