"""Healthy training on a loaded machine is left alone: no incident names a rank, and no run restarts.

Runs only if HOLDFAST_HEALTHY_S is set: for how many seconds each mode trains.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from cluster import wait_until

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "client/examples/nanogpt/train.py"
SECONDS = float(os.environ.get("HOLDFAST_HEALTHY_S", 0))
SMALL = ["--batch", "2", "--length", "16", "--width", "16", "--heads", "2", "--layers", "1"]

if SECONDS == 0:
    pytest.skip("takes minutes: set HOLDFAST_HEALTHY_S=1800", allow_module_level=True)


@pytest.fixture
def load():
    """Keeps every core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(os.cpu_count())]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_healthy_training_is_left_alone(cluster, job, load, mode):
    def answer(*command):
        return json.loads(cluster.cli(*command, "-o", "json").stdout)

    def step():
        status = cluster.cli("status", job, "-o", "json").stdout
        return json.loads(status)["jobs"][0]["newest_seen_step"] if status else 0

    done = cluster.cli(
        "run", "--job", job, "--detach", "--nnodes", "1", "--nproc-per-node", "4", "--",
        sys.executable, str(HERE / "healthy_training.py"), str(EXAMPLE), "--mode", mode,
        "--steps", str(10**7), "--job", job, *SMALL)
    assert done.returncode == 0, done.stderr
    try:
        wait_until(lambda: step() >= 5, seconds=120, what="training")
        first = step()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(min(5, SECONDS / 4))
            incidents = answer("incidents", "--job", job)["incidents"]
            blamed = [one for one in incidents if one["ranks"] or one["state"] != "alert"]
            assert not blamed, json.dumps(blamed, indent=1)
        last = step()
        assert last > first + SECONDS / 10, "training continues"
        newest = answer("versions", job)["versions"][0]["version"]
        assert newest.startswith("1-"), f"the run was restarted: {newest}"
        print(f"{mode}: {last - first} steps in {SECONDS:.0f} s, {len(incidents)} incidents")
    finally:
        cluster.cli("stop", job, "--now")
