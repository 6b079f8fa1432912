#!/usr/bin/env bash
# Installs the packages, builds, and runs the demo: a coordinator, four node agents and a four-rank
# training run on this machine that checkpoints every step and is hit by one failure after another.
# Exit code 0 only if the final parameters equal an uninterrupted run's, byte for byte.
#
#   deploy/demo.sh [--json FILE] [--drill NAME]... [--steps N] [--keep]
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh
# Crash points are compiled in here (and never in what is installed): some drills stop a process at one.
cmake --preset test >build.log 2>&1 || { cat build.log >&2; exit 1; }
rm -f build.log
echo "Building (a few minutes the first time)" >&2
ninja -C build/test --quiet holdfast-demo holdfast-coordinator holdfast-agent holdfast-keeper \
  holdfast-shim holdfast-fault holdfast holdfast-charlm >&2
exec build/test/bin/holdfast-demo "$@"
