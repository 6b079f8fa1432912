#!/usr/bin/env bash
# Creates the virtual environment for the tests of the Python package, or updates the package in it.
#
#   environment.sh PYTHON ENVIRONMENT PACKAGE CLIENT_LIBRARY
#
# Exit code 77: the environment cannot be created here. HOLDFAST_FRAMEWORKS=1 adds the frameworks for
# test_frameworks.py.
set -euo pipefail
python=$1 environment=$2 package=$3 library=$4
packages=(torch==2.13.0 numpy safetensors nanobind scikit-build-core pytest)

if [ ! -e "$environment/complete" ]; then
  rm -rf "$environment"
  if ! "$python" -m venv "$environment"; then
    echo "SKIPPED: $python has no venv (Debian: apt-get install python3-venv python3-dev)"
    rm -rf "$environment"
    exit 77
  fi
  if ! timeout 600 "$environment/bin/pip" install --quiet --no-compile "${packages[@]}"; then
    echo "SKIPPED: pip cannot install ${packages[*]} here"
    rm -rf "$environment"
    exit 77
  fi
  touch "$environment/complete"
fi
if [ "${HOLDFAST_FRAMEWORKS:-}" = 1 ] && [ ! -e "$environment/frameworks" ]; then
  # The constraint keeps torch unchanged. DeepSpeed compiles operators only when they are used: none here.
  echo "${packages[0]}" >"$environment/constraints"
  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu timeout 600 "$environment/bin/pip" install --quiet --no-compile \
    --no-build-isolation -c "$environment/constraints" transformers accelerate lightning wheel deepspeed torchdata
  touch "$environment/frameworks"
fi
if ! "$python" -c 'import sysconfig, os, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
  echo "SKIPPED: Python.h is missing (Debian: apt-get install python3-dev)"
  exit 77
fi
exec "$environment/bin/pip" install --quiet --force-reinstall --no-build-isolation --no-deps --no-index \
  --config-settings=cmake.define.HOLDFAST_CLIENT_LIBRARY="$library" "$package"
