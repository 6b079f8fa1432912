#!/usr/bin/env bash
# Scans the manifests of deploy/kubernetes with checkov, which it installs into ENVIRONMENT.
#
#   checkov.sh ENVIRONMENT
set -euo pipefail
cd "$(dirname "$0")/../.."
environment=$1
if [ ! -e "$environment/complete" ]; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --no-compile checkov==3.3.30
  touch "$environment/complete"
fi
exec "$environment/bin/checkov" --framework kubernetes --directory deploy/kubernetes --compact --quiet \
  --skip-download
