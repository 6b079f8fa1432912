#!/usr/bin/env bash
# Runs one file of tests in the environment: run.sh ENVIRONMENT FILE. Exit code 77: there is none.
set -euo pipefail
cd "$(dirname "$0")"
if [ ! -e "$1/complete" ]; then
  echo "SKIPPED: there is no environment (see the test python_environment)"
  exit 77
fi
exec "$1/bin/python" -m pytest -p no:cacheprovider -q --durations=5 "$2"
