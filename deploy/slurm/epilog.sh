#!/bin/bash
# Epilog of slurm.conf: stops the agent of this node after the last job. The exit code is always 0, because Slurm drains
# a node whose epilog fails.
"$BASH" "$(dirname "${BASH_SOURCE[0]}")/node.sh" stop
exit 0
