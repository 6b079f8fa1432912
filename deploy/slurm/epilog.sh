#!/bin/bash
# Epilog of slurm.conf: stops the agent of this node after the last job. An error must not drain the node.
"$BASH" "$(dirname "${BASH_SOURCE[0]}")/node.sh" stop
exit 0
