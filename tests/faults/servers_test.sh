#!/usr/bin/env bash
# The programs of the servers contain nothing of faults/: no code, no messages, and no call that injects a fault.
#   servers_test.sh BIN_DIR
set -euo pipefail
pattern='8holdfast6faults|faults/api/faults\.proto|holdfast\.faults\.FaultInjector'
calls='InjectFault|EndFault|KillCoordinator'
failed=0
for program in agent coordinator keeper shim; do
  if found=$(grep -aoE "$pattern|$calls" "$1/holdfast-$program" | sort -u) && [[ -n $found ]]; then
    printf 'holdfast-%s contains %s\n' "$program" "$found" >&2
    failed=1
  fi
done
# The same search finds the texts in holdfast-fault, so it can find them.
for text in 8holdfast6faults faults/api/faults.proto holdfast.faults.FaultInjector; do
  grep -qaF "$text" "$1/holdfast-fault" || { echo "holdfast-fault does not contain $text" >&2; failed=1; }
done
exit "$failed"
