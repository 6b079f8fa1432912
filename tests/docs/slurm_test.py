#!/usr/bin/env python3
"""Does what docs/slurm.md describes, on five machines with Slurm and a separate network.

  slurm_test.py PACKAGES
"""

import base64
import pathlib
import secrets
import shutil
import sys

from machine import network, packages
from page import run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
# A Slurm that works, before Holdfast.
CONFIGURATION = """ClusterName=page
SlurmctldHost=control
SlurmUser=root
SlurmdUser=root
AuthInfo=cred_expire=5
StateSaveLocation=/run/slurm
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SelectType=select/linear
ReturnToService=2
KillWait=2
NodeName=n[1-4] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""


def start_slurm(machines):
    """Starts Slurm on the machines. The first one has slurmctld."""
    key = base64.b64encode(secrets.token_bytes(128)).decode()
    for name, machine in machines.items():
        machine.write("/etc/slurm/slurm.conf", CONFIGURATION, "the start")
        machine.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n", "the start")
        machine.run("mkdir -p /srv/job && mount --bind /machines/job /srv/job\n"
                    "mkdir -p /etc/munge /run/munge /run/slurm /run/slurmd\n"
                    f"echo {key} | base64 -d >/etc/munge/munge.key && chmod 400 /etc/munge/munge.key\n"
                    "chown root: /etc/munge /etc/munge/munge.key /run/munge\n"
                    "mkdir -p /var/log/munge /var/lib/munge && chown root: /var/log/munge /var/lib/munge\n"
                    "munged --force 2>/dev/null", "the start")
        machine.run("slurmctld" if name == "control" else "slurmd", "the start")
    machines["control"].run("for try in $(seq 100); do [ $(sinfo -h -N -t idle | wc -l) != 4 ] || break; sleep 0.2; done\n"
                            "[ $(sinfo -h -N -t idle | wc -l) = 4 ]", "the start")


def main():
    packages()
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if missing:
        print(f"SKIPPED: not installed: {', '.join(missing)} (deploy/install-deps.sh --ops)")
        return 77
    with network(("control", *NODES), {"slurm": ROOT / "deploy" / "slurm"}, boxes=("job",)) as machines:
        try:
            start_slurm(machines)
            print(f"{run(ROOT / 'docs' / 'slurm.md', machines)} blocks")
        except AssertionError:
            for machine in machines.values():
                print(machine.run("tail -n 15 /run/slurm*.log /var/log/holdfast-agent.log /srv/job/*.out || true", ""))
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
