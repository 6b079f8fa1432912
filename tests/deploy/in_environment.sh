#!/usr/bin/env bash
# Runs a Python program in a virtual environment. Exit code 77: the environment could not be created.
#
#   in_environment.sh ENVIRONMENT PROGRAM [ARGUMENT...]
set -euo pipefail
environment=$1
shift
if [ ! -e "$environment/complete" ]; then
  echo "SKIPPED: there is no $environment; the test that creates it has the reason"
  exit 77
fi
exec "$environment/bin/python" -B "$@"
