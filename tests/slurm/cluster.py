"""A real Slurm cluster on this machine: munged, slurmctld and one slurmd per node, and a Holdfast coordinator.

All files are in one temporary folder, all ports are free ones of the loopback. The cluster ends exactly the processes
that it started: orphans of its children become children of this process (PR_SET_CHILD_SUBREAPER).
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("HOLDFAST_BIN_DIR", ROOT / "build/test/bin"))
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "squeue", "scancel")
PR_SET_CHILD_SUBREAPER = 36
# Seconds after which slurmctld treats a node that does not answer as lost.
SLURMD_TIMEOUT = 5


def find_program(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def reason_to_skip():
    """Returns why Slurm cannot run here, or None."""
    missing = [name for name in PROGRAMS if find_program(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (deploy/install-deps.sh --ops)"
    if os.geteuid() != 0:
        return "slurmd needs root"
    return None


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(condition, seconds, what):
    """Returns the first value of `condition()` that counts as true. AssertionError with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.1)


def children_of(pid):
    with contextlib.suppress(OSError):
        found = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        return [int(one) for one in found]
    return []


def descendants_of(pid):
    found = []
    for child in children_of(pid):
        found += [child, *descendants_of(child)]
    return found


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def program_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def lock_holder(path):
    """Returns the process ID in the lock file of an agent or a keeper that runs, or None."""
    try:
        pid = int(pathlib.Path(path).read_text().strip("\0\n "))
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return None if state == "Z" else pid


class Cluster:
    def __init__(self, nodes=4, keep_s=600, settle_s=0):
        self.names = [f"n{i}" for i in range(1, nodes + 1)]
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="hfs"))
        self.keep_s = keep_s
        self.settle_s = settle_s
        self.processes = []
        self.slurmd = {}
        self.environment = dict(os.environ, SLURM_CONF=str(self.root / "slurm.conf"))
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        control, *self.ports = free_ports(1 + nodes)
        self.write_configuration(control)

    # ---- configuration -------------------------------------------------------------------------

    def node_dir(self, node):
        return self.root / node

    def run_dir(self, node):
        return self.root / node / "run"

    def data_dir(self, node):
        return self.root / node / "data"

    def write_configuration(self, control):
        host = socket.gethostname().split(".")[0]
        scripts = self.root / "scripts"
        shutil.copytree(ROOT / "deploy/slurm", scripts)
        self.scripts = scripts
        for folder in ("state", "work"):
            (self.root / folder).mkdir()
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        lines = [
            "ClusterName=holdfast", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={control}",
            "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge",
            # cred_expire is also the time for which a requeued job waits.
            f"AuthInfo=socket={self.root}/munge.sock,cred_expire=5",
            f"StateSaveLocation={self.root}/state", f"SlurmdSpoolDir={self.root}/%n/spool",
            f"SlurmctldPidFile={self.root}/slurmctld.pid", f"SlurmdPidFile={self.root}/%n/slurmd.pid",
            f"SlurmctldLogFile={self.root}/slurmctld.log", f"SlurmdLogFile={self.root}/%n/slurmd.log",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none", "MpiDefault=none",
            "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none",
            "SlurmdParameters=config_overrides", "SelectType=select/linear", "ReturnToService=2",
            "SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,sched_interval=1,bf_interval=1",
            f"SlurmdTimeout={SLURMD_TIMEOUT}", "KillWait=2", "InactiveLimit=0", "MinJobAge=600", "JobRequeue=1",
            f"Prolog={scripts}/prolog.sh", f"Epilog={scripts}/epilog.sh", f"TaskProlog={scripts}/task-prolog.sh",
            "PrologFlags=Alloc", "PrologEpilogTimeout=120",
        ]
        for name, port in zip(self.names, self.ports):
            (self.root / name / "spool").mkdir(parents=True)
            lines.append(f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs=2 State=UNKNOWN")
        lines += [f"PartitionName=all Nodes={','.join(self.names)} Default=YES MaxTime=INFINITE State=UP",
                  f"PartitionName=shared Nodes={self.names[0]} OverSubscribe=FORCE:4 MaxTime=INFINITE State=UP"]
        (self.root / "slurm.conf").write_text("\n".join(lines) + "\n")

    def configure_holdfast(self, endpoint):
        """Appends the values of this cluster to the configuration that deploy/slurm/holdfast.conf shows."""
        (self.root / "agent.toml").write_text(
            'cluster = "slurm-test"\n[arena]\nbytes = "64MiB"\n')
        with open(self.scripts / "holdfast.conf", "a", encoding="utf-8") as file:
            file.write(f"""
HOLDFAST_BIN={BIN}
HOLDFAST_COORDINATOR={endpoint}
HOLDFAST_AGENT_CONFIG={self.root}/agent.toml
HOLDFAST_AGENT_SETTINGS=("data_dirs=[\\"{self.root}/${{SLURMD_NODENAME:-}}/data\\"]")
HOLDFAST_RUN_DIR={self.root}/${{SLURMD_NODENAME:-}}/run
HOLDFAST_STATE_DIR={self.root}/${{SLURMD_NODENAME:-}}/state
HOLDFAST_LOG={self.root}/${{SLURMD_NODENAME:-}}/agent.log
HOLDFAST_KEEP_S={self.keep_s}
HOLDFAST_SETTLE_S={self.settle_s}
""")

    # ---- processes -----------------------------------------------------------------------------

    def spawn(self, name, *command):
        with open(self.root / f"{name}.out", "ab") as out:
            process = subprocess.Popen([find_program(str(command[0])), *map(str, command[1:])],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment,
                                       start_new_session=True)
        self.processes.append(process)
        return process

    def start_slurmd(self, node):
        self.slurmd[node] = self.spawn(f"{node}-slurmd", "slurmd", "-D", "-N", node, "-f", self.root / "slurm.conf")

    def start(self):
        self.spawn("munged", "munged", "--foreground", "--force", f"--key-file={self.root}/munge.key",
                   f"--socket={self.root}/munge.sock", f"--pid-file={self.root}/munged.pid",
                   f"--log-file={self.root}/munged.log", f"--seed-file={self.root}/munged.seed")
        wait_until((self.root / "munge.sock").exists, 10, lambda: self.log("munged.out"))
        self.spawn("coordinator", BIN / "holdfast-coordinator", "--set", "cluster=slurm-test", "--set",
                   f"listen=unix:{self.root}/c.sock", "--set", f"data_dir={self.root}/coordinator")
        wait_until((self.root / "c.sock").exists, 20, lambda: self.log("coordinator.out"))
        self.endpoint = f"unix:{self.root}/c.sock"
        self.environment["HOLDFAST_ENDPOINT"] = self.endpoint
        self.configure_holdfast(self.endpoint)
        self.spawn("slurmctld", "slurmctld", "-D", "-c", "-f", self.root / "slurm.conf")
        for node in self.names:
            self.start_slurmd(node)
        wait_until(lambda: set(self.node_states().values()) == {"idle"}, 30, self.describe)

    def stop(self):
        """Ends every process that descends from this one, and removes the folder."""
        end = time.monotonic() + 20
        while descendants_of(os.getpid()):
            for pid in descendants_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.poll()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > end:
                raise AssertionError(f"processes remain: {descendants_of(os.getpid())}")
            time.sleep(0.02)
        for process in self.processes:
            process.wait()
        if "HOLDFAST_KEEP" not in os.environ:
            shutil.rmtree(self.root)

    def lose_node(self, node):
        """Kills everything on the node at once: slurmd, the job's processes, the agent, and the memory."""
        slurmd = self.slurmd.pop(node)
        victims = [slurmd.pid]
        for pid in descendants_of(os.getpid()):
            with contextlib.suppress(OSError):
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"SLURMD_NODENAME={node}".encode() in variables:
                    # slurmstepd, the parent of tasks, has no variable with the name of its node.
                    victims += [parent for parent in (parent_of(pid),) if program_of(parent).startswith("slurmstepd")]
                    victims.append(pid)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        slurmd.wait()

    def agent_pid(self, node):
        return lock_holder(self.run_dir(node) / "agent.lock")

    def keeper_pid(self, node):
        return lock_holder(self.run_dir(node) / "keeper.lock")

    def trainers(self, node):
        """Returns rank → process ID of the trainers on the node."""
        found = {}
        for pid in descendants_of(os.getpid()):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") != str((BIN / "holdfast-charlm").resolve()):
                    continue
                variables = dict(one.partition("=")[::2] for one in
                                 pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0"))
                if variables.get("SLURMD_NODENAME") == node:
                    found[int(variables["RANK"])] = pid
        return found

    # ---- commands ------------------------------------------------------------------------------

    def run(self, *command, codes=(0,), **variables):
        done = subprocess.run([str(one) for one in command], capture_output=True, text=True, cwd=self.root / "work",
                              env={**self.environment, **variables}, timeout=60, check=False)
        if done.returncode not in codes:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}\n"
                                 f"{self.describe()}")
        return done

    def holdfast(self, *arguments, codes=(0, 2)):
        """Returns the JSON document that the command prints."""
        return json.loads(self.run(BIN / "holdfast", *arguments, "-o", "json", codes=codes).stdout)

    def node_states(self):
        done = subprocess.run(["sinfo", "--noheader", "--Node", "--format", "%N %T"], capture_output=True, text=True,
                              env=self.environment, timeout=30, check=False)
        return dict(line.split() for line in done.stdout.splitlines())

    def sbatch(self, nodes, *command, options=(), **variables):
        """Submits train.sbatch with the command. Returns the job's ID."""
        done = self.run("sbatch", "--parsable", f"--nodes={nodes}", "--output=%j.out", *options,
                        self.scripts / "train.sbatch", *command, MASTER_ADDR="127.0.0.1",
                        PATH=f"{BIN}:{os.environ['PATH']}", **variables)
        return done.stdout.strip()

    def job(self, job):
        """Returns the fields of `scontrol show job`."""
        text = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def nodes_of(self, job):
        return self.run("scontrol", "show", "hostnames", self.job(job)["NodeList"]).stdout.split()

    def await_state(self, job, states, seconds=60):
        """Returns the job's fields when it is in one of the states."""
        def reached():
            fields = self.job(job)
            return fields if fields["JobState"] in states else None
        return wait_until(reached, seconds, lambda: f"job {job} is {' or '.join(states)}\n{self.describe(job)}")

    # ---- reports -------------------------------------------------------------------------------

    def log(self, name, lines=40):
        with contextlib.suppress(OSError):
            return "\n".join((self.root / name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def describe(self, job=None):
        parts = [f"nodes: {self.node_states()}", "slurmctld:", self.log("slurmctld.log")]
        if job is not None:
            parts += ["job:", self.log(f"work/{job}.out")]
        for node in self.names:
            parts += [f"{node}:", self.log(f"{node}/slurmd.log", 15), self.log(f"{node}/agent.log", 15)]
        return "\n".join(parts)
