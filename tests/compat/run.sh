#!/usr/bin/env bash
# Runs a test program with the previous version at hand: run.sh PROGRAM [--previous-trainers] [ARGUMENT...]. With
# --previous-trainers, the program's ranks use the previous client library. Exit 77: the version is not built.
set -euo pipefail
program=$1
shift
folder=$("$(dirname "$0")/build_previous.sh" --find)
export HOLDFAST_PREVIOUS_PROGRAMS=$folder/bin
if [ "${1:-}" = --previous-trainers ]; then
  shift
  library=$(find "$folder/lib" -name 'libholdfast.so.?' | head -n 1)
  export HOLDFAST_PREVIOUS_LIBRARY=$library LD_PRELOAD=$library
fi
exec "$program" "$@"
