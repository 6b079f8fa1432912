"""Healthy training on a loaded machine is left alone: no incident names a rank, and no run restarts.

HOLDFAST_HEALTHY_S=1800 trains for half an hour on a machine whose cores are all busy; otherwise for a
few seconds, and one mode. HOLDFAST_HEALTHY_MODES=ddp,tp selects the modes, which train at the same time.
HOLDFAST_HEALTHY_TABLE is a file that gets one row of each.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from cluster import Cluster, wait_until

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "client/examples/nanogpt/train.py"
SECONDS = float(os.environ.get("HOLDFAST_HEALTHY_S", 4))
LONG = "HOLDFAST_HEALTHY_S" in os.environ
MODES = os.environ.get("HOLDFAST_HEALTHY_MODES", "ddp,fsdp,tp,pipeline" if LONG else "pipeline").split(",")
SMALL = ["--batch", "4", "--length", "16", "--width", "16", "--heads", "2", "--layers", "2"]


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster(nodes=len(MODES)).start()  # a node has one run
    yield cluster
    cluster.stop()


@pytest.fixture
def load():
    """Keeps every core busy during a long test."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(os.cpu_count() if LONG else 0)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def test_healthy_training_is_left_alone(cluster, load):
    def answer(*command):
        return json.loads(cluster.cli(*command, "-o", "json").stdout)

    def step(job):
        status = cluster.cli("status", job, "-o", "json").stdout
        return json.loads(status)["jobs"][0]["newest_seen_step"] or 0 if status else 0

    def blamed(incident):
        """Whether it names a rank or a connection, or had a consequence."""
        return incident["ranks"] or "connection from rank" in incident["what"] or incident["state"] != "noted"

    jobs = {f"healthy-{mode}": mode for mode in MODES}
    try:
        for job, mode in jobs.items():
            done = cluster.cli(
                "run", "--job", job, "--detach", "--nnodes", "1", "--nproc-per-node", "4", "--",
                sys.executable, str(HERE / "healthy_training.py"), str(EXAMPLE), "--mode", mode,
                "--steps", str(10**7), "--job", job, *SMALL)
            assert done.returncode == 0, done.stderr
        for job in jobs:
            wait_until(lambda: step(job) >= 5, seconds=120, what=f"training of {job}")
        first = {job: step(job) for job in jobs}
        time.sleep(SECONDS)
        wrong = []
        for job, mode in jobs.items():
            incidents = answer("incidents", "--job", job)["incidents"]
            newest = answer("versions", job)["versions"][0]["version"]
            steps = step(job) - first[job]
            wrong += [one for one in incidents if blamed(one)]
            if not newest.startswith("1-") or steps <= SECONDS / 20:
                wrong.append(f"{job}: {steps} steps in {SECONDS:.0f} s, newest version {newest}")
            if table := os.environ.get("HOLDFAST_HEALTHY_TABLE"):
                kinds = collections.Counter(one["kind"] for one in incidents)
                listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
                named = sum(1 for one in incidents if blamed(one))
                with open(table, "a") as file:
                    file.write(f"| {mode} | {SECONDS / 60:.0f} min | {steps} | {listed} | {named} |\n")
        assert not wrong, json.dumps(wrong, indent=1)
    finally:
        for job in jobs:
            cluster.cli("stop", job, "--now")
