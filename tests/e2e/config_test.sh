#!/usr/bin/env bash
# The shipped configuration equals the output of --print-config, and the programs accept it.
#   config_test.sh BIN_DIR CONFIG_DIR
set -euo pipefail
# The node name of agent and fault injector defaults to the host's; the shipped file has a neutral one.
node=(--set node=node-1)
for program in agent fault coordinator; do
  diff -u "$2/$program.toml" <("$1/holdfast-$program" "${node[@]}" --print-config) || {
    echo "deploy/config/$program.toml differs from the output of holdfast-$program --print-config" >&2
    exit 1
  }
  "$1/holdfast-$program" --config "$2/$program.toml" --check-config
  "$1/holdfast-$program" --version | grep -q "commit"
  [[ $program != fault ]] || node=()
done
