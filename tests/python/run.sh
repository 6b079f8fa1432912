#!/usr/bin/env bash
# Runs one test file in the environment: run.sh ENVIRONMENT FILE. Exit code 77: there is no environment,
# or no test of the file can run here.
set -euo pipefail
cd "$(dirname "$0")"
if [ ! -e "$1/complete" ]; then
  echo "SKIPPED: there is no environment (see the test python_environment)"
  exit 77
fi
code=0
"$1/bin/python" -m pytest -p no:cacheprovider -q -rs --durations=5 "$2" || code=$?
[ "$code" != 5 ] || code=77  # no tests were collected
exit "$code"
