#!/bin/bash
# Starts and stops the agent of a Slurm node. prolog.sh and epilog.sh call it as root; holdfast.conf configures it.
#
#   node.sh start       registers the job $SLURM_JOB_ID, and starts the agent unless it runs. Returns when trainers can
#                       connect; exit code 1 if they cannot within HOLDFAST_START_S
#   node.sh stop        removes the job. After the last job of the node: stops the agent, and lets the keeper hold the
#                       memory for HOLDFAST_KEEP_S
#   node.sh agent       (started by start) runs the agent, and starts it again if it fails while jobs use it
#   node.sh keep SINCE  (started by stop) ends the keeper after HOLDFAST_KEEP_S, unless a job starts before that
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/slurm/holdfast.conf
. "$here/holdfast.conf"

jobs=$HOLDFAST_STATE_DIR/jobs              # one file for each job that uses the agent, named by its ID
lock=$HOLDFAST_STATE_DIR/lock              # held while a job comes or goes
agent_lock=$HOLDFAST_RUN_DIR/agent.lock    # held by the agent, contains its process ID
keeper_lock=$HOLDFAST_RUN_DIR/keeper.lock  # the same for the keeper
loop_lock=$HOLDFAST_STATE_DIR/loop.lock    # held by `node.sh agent`
idle=$HOLDFAST_STATE_DIR/idle              # exists while no job uses the node; contains the time at which that began
wake=$HOLDFAST_STATE_DIR/wake              # a line in this FIFO ends `node.sh keep`

record() { printf '%s node.sh %s\n' "$(date -Is)" "$*" >>"$HOLDFAST_LOG"; }

# is_held FILE: whether a process holds the lock on FILE.
is_held() { [ -e "$1" ] && ! flock --nonblock --shared "$1" true; }

# signal SIGNAL FILE: sends the signal to the process whose ID the locked FILE contains.
signal() {
  local pid
  is_held "$2" && read -r -d '' pid <"$2"
  [[ ${pid:-} =~ ^[0-9]+$ ]] && kill "-$1" "$pid" 2>/dev/null
}

no_jobs() { [ -z "$(ls -A "$jobs")" ]; }

# Removes the jobs that Slurm no longer runs here. Their epilog did not run, for example because slurmd was killed.
# Asks slurmctld only if other jobs are recorded; without an answer the jobs stay.
remove_ended_jobs() {
  local running job
  no_jobs && return
  running=$(squeue --noheader --nodelist="$SLURMD_NODENAME" --format=%A) || return 0
  for job in "$jobs"/*; do
    job=${job##*/}
    if [[ $'\n'$running$'\n' != *$'\n'$job$'\n'* ]]; then
      record "stop: job $job has ended without its epilog"
      rm -f "$jobs/$job"
    fi
  done
}

wanted() {
  [ -z "$HOLDFAST_PARTITIONS" ] || [[ " $HOLDFAST_PARTITIONS " == *" ${SLURM_JOB_PARTITION:-} "* ]]
}

# detached COMMAND: runs node.sh in a new session and without slurmd's descriptors, because slurmd kills the process
# group of the prolog or epilog when that ends. Returns when the process is in its new session, not before: on a busy
# node, slurmd would kill it first. Descriptor 9 is the lock of this script.
detached() {
  read -r < <(setsid --fork "$BASH" -c 'echo started; exec "$@" </dev/null >>"$0" 2>&1' \
    "$HOLDFAST_LOG" "$BASH" "$here/node.sh" "$@" 9>&-)
}

start() {
  touch "$jobs/$SLURM_JOB_ID"
  rm -f "$idle"
  [ -p "$wake" ] || mkfifo -m 600 "$wake"
  echo a job starts 1<>"$wake"
  if ! is_held "$loop_lock"; then
    # The wait below must not take a socket that a killed agent has left behind for the new agent's.
    is_held "$agent_lock" || rm -f "$HOLDFAST_RUN_DIR/agent.sock"
    detached agent
  fi
  local end=$((SECONDS + HOLDFAST_START_S))
  until [ -S "$HOLDFAST_RUN_DIR/agent.sock" ] && is_held "$agent_lock"; do
    if ((SECONDS >= end)); then
      record "start: the agent does not serve trainers after $HOLDFAST_START_S s"
      rm -f "$jobs/$SLURM_JOB_ID"
      no_jobs && stop_agent
      return 1
    fi
    sleep 0.05
  done
}

run_agent() {
  exec 8>"$loop_lock"
  flock --nonblock 8 || exit 0
  local settings=() setting
  for setting in "node=$SLURMD_NODENAME" "coordinator=$HOLDFAST_COORDINATOR" "run_dir=$HOLDFAST_RUN_DIR" \
    "${HOLDFAST_AGENT_SETTINGS[@]}"; do
    settings+=(--set "$setting")
  done
  until no_jobs; do
    "$HOLDFAST_BIN/holdfast-agent" --config "$HOLDFAST_AGENT_CONFIG" "${settings[@]}" 8>&- && break
    record "agent: ended with exit code $?"
    sleep 1
  done
}

# Returns when neither the agent nor `node.sh agent` runs.
stop_agent() {
  local end=$((SECONDS + HOLDFAST_STOP_S)) how=TERM
  while is_held "$loop_lock" || is_held "$agent_lock"; do
    if ((SECONDS >= end)) && [ $how = TERM ]; then
      record "stop: the agent does not stop within $HOLDFAST_STOP_S s and is killed"
      how=KILL
    fi
    # Repeated, because the lock file does not yet have the process ID of an agent that is just starting.
    signal $how "$agent_lock"
    sleep 0.1
  done
}

stop() {
  [ -e "$jobs/$SLURM_JOB_ID" ] || return 0
  rm -f "$jobs/$SLURM_JOB_ID"
  remove_ended_jobs
  no_jobs || return 0
  # A job may start meanwhile.
  flock --unlock 9
  sleep "$HOLDFAST_SETTLE_S"
  flock 9
  no_jobs || return 0
  stop_agent
  if ((HOLDFAST_KEEP_S > 0)); then
    local since=$EPOCHREALTIME
    echo "$since" >"$idle"
    detached keep "$since"
  else
    signal TERM "$keeper_lock"
  fi
}

keep() {
  exec 7<>"$wake"
  read -r -t "$HOLDFAST_KEEP_S" -u 7 && exit 0
  exec 9>"$lock"
  flock 9
  if [ "$(cat "$idle" 2>/dev/null)" = "$1" ]; then
    record "keep: the memory is freed after $HOLDFAST_KEEP_S s without a job"
    signal TERM "$keeper_lock"
  fi
}

umask 022
mkdir -p "$jobs" "$(dirname "$HOLDFAST_LOG")"
case "${1:-}" in
  start | stop)
    wanted || exit 0
    exec 9>"$lock"
    flock 9
    "$1"
    ;;
  agent) run_agent ;;
  keep) keep "$2" ;;
  *)
    sed -n '2,10p' "${BASH_SOURCE[0]}" >&2
    exit 64
    ;;
esac
