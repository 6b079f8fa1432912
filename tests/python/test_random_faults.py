"""Random faults of real ranks: which class and which rank do the incidents name, and when?

HOLDFAST_FAULTS=30 makes thirty faults, of the seed HOLDFAST_FAULT_SEED (default 1). HOLDFAST_FAULT_TABLE
is a file that gets one row of each. Every fault has its own job of four ranks on four nodes, which are
network namespaces. The training is that of test_healthy.py without recompilation, which takes long to start.
"""

import datetime
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from cluster import wait_until
from lan import LanCluster, cpu_seconds, limit_cpu

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "client/examples/nanogpt/train.py"
FAULTS = int(os.environ.get("HOLDFAST_FAULTS", 0))
SEED = int(os.environ.get("HOLDFAST_FAULT_SEED", 1))
RANKS = 4
WARM_STEPS, WARM_SECONDS = 30, 20  # at least, before a fault
SLOW_BYTES_PER_S = 2_000_000
# Operations must be large enough to show a slow link.
SIZE = ["--batch", "8", "--length", "64", "--width", "96", "--heads", "4", "--layers", "2"]

if FAULTS == 0:
    pytest.skip("takes minutes: set HOLDFAST_FAULTS=30", allow_module_level=True)

#: fault → the class that must be found, the longest wait for a verdict
EXPECTED = {
    "SIGKILL": ("worker died", 20),
    "SIGSTOP": ("non-communication hang", 60),
    "spin": ("non-communication hang", 150),
    "CPU quota": ("non-communication slow", 150),
    "cut link": ("communication hang", 120),
    "slow link": ("communication slow", 150),
}


@pytest.fixture(scope="module")
def cluster():
    cluster = None
    try:
        cluster = LanCluster(RANKS, agent_settings=["disk.every=50", "peers.every=50"])
        cluster.start()
    except (OSError, subprocess.CalledProcessError) as error:
        if cluster is not None:
            cluster.stop()
        pytest.skip(f"no network namespaces here: {error}")
    yield cluster
    cluster.stop()


def plan():
    """Every kind of fault equally often, in random order, on random ranks and modes."""
    choose = random.Random(SEED)
    kinds = [kind for _ in range(FAULTS // len(EXPECTED) + 1) for kind in EXPECTED][:FAULTS]
    choose.shuffle(kinds)
    return [(kind, choose.choice(["ddp", "fsdp", "tp", "pipeline"]), choose.randrange(RANKS))
            for kind in kinds]


class Job:
    def __init__(self, cluster, name, mode, pids):
        self.cluster, self.name, self.folder = cluster, name, pids
        done = cluster.cli(
            "run", "--job", name, "--detach", "--nnodes", str(RANKS), "--nproc-per-node", "1",
            "--grace", "2s", "--env", f"HOLDFAST_TEST_PIDS={pids}", "--env", "GLOO_SOCKET_IFNAME=eth0",
            "--env", "OMP_NUM_THREADS=1", "--", sys.executable, str(HERE / "healthy_training.py"),
            str(EXAMPLE), "--mode", mode, "--steps", str(10**7), "--job", name,
            "--no-recompilation", *SIZE)
        assert done.returncode == 0, done.stderr

    def answer(self, *command):
        return json.loads(self.cluster.cli(*command, "-o", "json").stdout or "null")

    def step(self):
        status = self.answer("status", self.name)
        return status["jobs"][0]["newest_seen_step"] or 0 if status and status["jobs"] else 0

    def incidents(self):
        return self.answer("incidents", "--job", self.name)["incidents"]

    def pid(self, rank):
        return int((self.folder / f"rank-{rank}").read_text())

    def stop(self):
        self.cluster.cli("stop", self.name, "--now")
        pids = [path.read_text() for path in self.folder.iterdir()]
        wait_until(lambda: not any(pathlib.Path("/proc", pid).exists() for pid in pids), 60,
                   what="the end of the workers")


def inject(kind, pid, node, cluster):
    """Returns the time of the fault and the function that ends it."""
    if kind == "CPU quota":  # a third of what the rank has used
        before, begin = cpu_seconds(pid), time.monotonic()
        time.sleep(5)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - begin) / 3
        return time.time(), limit_cpu(pid, share)
    since = time.time()
    if kind == "cut link":
        return since, cluster.lan.cut(node)
    if kind == "slow link":
        return since, cluster.lan.slow_down(node, SLOW_BYTES_PER_S)
    os.kill(pid, {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "spin": signal.SIGUSR1}[kind])
    return since, lambda: None


def names(incident, rank, node):
    return incident["ranks"] == [rank] or (not incident["ranks"] and incident["nodes"] == [f"n{node}"])


def seconds_after(since, time_text):
    return datetime.datetime.fromisoformat(time_text).timestamp() - since


def subject(what):
    return what.removeprefix("suspected ").rpartition(", confidence")[0]


def detected(cluster, job, since):
    """What the detector logged of the job since then: seconds, whether it is a verdict, the subject. The
    incident of a suspicion stays when the suspicion becomes a verdict, so only the log has both times."""
    line = re.compile(rf'(\S+) W \S+ Fault(Suspected|Detected) job={job.name} .*what="(.*)" action=')
    found = line.finditer((cluster.root / "coordinator.log").read_text())
    return [(seconds_after(since, one[1]), one[2] == "Detected", subject(one[3])) for one in found]


def watch(kind, job, cluster, since):
    """Returns the incident of the first verdict, or None, and the seconds until the first suspicion and
    until the verdict."""
    deadline = time.monotonic() + EXPECTED[kind][1]
    while time.monotonic() < deadline:
        time.sleep(0.3)
        log = [one for one in detected(cluster, job, since) if one[0] >= 0]
        suspicion = min((at for at, *_ in log), default=None)
        for one in job.incidents():
            at = seconds_after(since, one["time"])
            if at >= 0 and one["state"] != "noted":  # it has restarted the job
                return one, at if suspicion is None else min(at, suspicion), at
            for verdict_at, certain, what in log:
                if certain and what == subject(one["what"]):
                    return one, suspicion, verdict_at
    return None, suspicion, None


def test_random_faults_are_attributed(cluster, tmp_path):
    rows, wrong = [], []
    for number, (kind, mode, rank) in enumerate(plan()):
        pids = tmp_path / f"pids-{number}"
        pids.mkdir()
        job = Job(cluster, f"fault-{number}", mode, pids)
        end = None
        try:
            wait_until(lambda: job.step() >= 1, 600, what=f"training of {job.name}")
            time.sleep(WARM_SECONDS)
            wait_until(lambda: job.step() >= WARM_STEPS, 300, what=f"steps of {job.name}")
            early = job.incidents()
            pid = job.pid(rank)
            node = cluster.lan.node_of(pid)
            since, end = inject(kind, pid, node, cluster)
            incident, suspicion, verdict = watch(kind, job, cluster, since)
        finally:
            try:
                if end is not None:
                    end()
            finally:
                job.stop()
        found = incident is not None and incident["kind"] == EXPECTED[kind][0]
        exact = found and names(incident, rank, node)
        named = "–" if incident is None else incident["what"]
        seconds = ["–" if value is None else f"{value:.1f} s" for value in (suspicion, verdict)]
        rows.append(f"| {kind} | {mode} | {rank} | {named} | {' | '.join(seconds)} | "
                    f"{'exact' if exact else 'class' if found else 'no'} |")
        with open(os.environ.get("HOLDFAST_FAULT_TABLE", os.devnull), "a") as file:
            print(rows[-1], file=file)
            for one in early:
                print(f"<!-- before: {one['what']} -->", file=file)
            if not exact:
                print(f"<!-- {json.dumps(job.incidents())} -->", file=file)
        if not exact:
            wrong.append(rows[-1])
    assert not wrong, "\n".join(wrong)
