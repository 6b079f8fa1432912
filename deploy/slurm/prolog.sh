#!/bin/bash
# Prolog of slurm.conf: starts the agent of this node for the job. If the exit code is not 0, Slurm drains the node and
# holds the job.
exec "$BASH" "$(dirname "${BASH_SOURCE[0]}")/node.sh" start
