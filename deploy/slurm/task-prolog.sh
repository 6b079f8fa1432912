#!/bin/bash
# TaskProlog of slurm.conf: each line of its output sets a variable of the task. A program that passes these variables
# on to the client library needs no options for Holdfast. RANK, LOCAL_RANK and WORLD_SIZE have the meaning that torchrun
# gives them. Variables that the job has set remain as they are.
[ -n "${SLURM_STEP_ID:-}" ] || exit 0  # the batch script: its tasks would inherit the values of the first node
. "$(dirname "${BASH_SOURCE[0]}")/holdfast.conf"

# variable NAME VALUE
variable() { [ -n "${!1:-}" ] || echo "export $1=$2"; }

variable HOLDFAST_SOCKET "$HOLDFAST_RUN_DIR/agent.sock"
variable HOLDFAST_JOB "$SLURM_JOB_NAME"
# A requeue increments SLURM_RESTART_COUNT and keeps SLURM_JOB_ID; another srun of the same batch script increments
# SLURM_STEP_ID. For Holdfast, each of the two is a new start of the job.
variable HOLDFAST_RUN_ID "slurm-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$SLURM_STEP_ID"
variable RANK "$SLURM_PROCID"
variable LOCAL_RANK "$SLURM_LOCALID"
variable WORLD_SIZE "$SLURM_NTASKS"
exit 0
