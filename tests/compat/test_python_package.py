"""The previous version's Python package and this version's take turns in one training, with the servers of either
version. The result must equal that of an uninterrupted training, bit for bit. python.sh runs this."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from cluster import Cluster

# Trains up to a step, and ends at once, without closing anything.
PROGRAM = """
import hashlib, json, os, sys
import torch
import holdfast.torch as hf
job, last = sys.argv[1], int(sys.argv[2])
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 3000), torch.nn.Dropout(0.2), torch.nn.Linear(3000, 1))
optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
seen = {"steps": (), "mean": torch.zeros(3000)}
ckpt = hf.Checkpointer(job=job, state={"model": model, "optim": optim, "seen": seen})
first = ckpt.restore()
for step in range(first, last):
    loss = model(torch.rand(16, 8)).square().mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    ckpt.guard()
    seen["mean"] += model[0].bias.detach()
    seen["steps"] += (step, loss.item())
    assert ckpt.save(step, wait_for_slot=60)
ckpt.wait(last - 1, hf.Tier.DISK, timeout=60)
digest = hashlib.sha256(repr(seen["steps"]).encode())
states = optim.state_dict()["state"]
for tensor in [*model.state_dict().values(), seen["mean"], torch.get_rng_state(),
               *(states[number][key] for number in sorted(states) for key in sorted(states[number]))]:
    digest.update(tensor.numpy().tobytes())
print(json.dumps({"package": hf.__file__, "first": first, "digest": digest.hexdigest()}), flush=True)
os._exit(0)
"""
PREVIOUS = os.environ["HOLDFAST_PREVIOUS_PACKAGE"]
TURN = 3


def train(cluster, job, last, previous=False):
    """Trains with one of the packages. Returns the first step and a checksum of the state."""
    environment = {**os.environ, "HOLDFAST_SOCKET": cluster.socket(), "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": PREVIOUS if previous else ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM, job, str(last)], env=environment, capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["package"].startswith(PREVIOUS + "/") == previous, found["package"]
    return found["first"], found["digest"]


@pytest.fixture(scope="module")
def uninterrupted():
    """The checksum after all turns, of this version alone."""
    cluster = Cluster().start()
    try:
        return train(cluster, "reference", 3 * TURN)[1]
    finally:
        cluster.stop()


@pytest.mark.parametrize("servers", ["HOLDFAST_BIN_DIR", "HOLDFAST_PREVIOUS_PROGRAMS"], ids=["these", "previous"])
def test_both_packages_continue_each_others_training(uninterrupted, servers):
    cluster = Cluster(programs=pathlib.Path(os.environ[servers])).start()
    try:
        for turn in range(3):
            first, found = train(cluster, "turns", (turn + 1) * TURN, previous=turn != 1)
            assert first == turn * TURN
            if turn == 1:  # the next turn restores from the disk
                cluster.kill_everything()
                cluster.start()
        assert found == uninterrupted
    finally:
        cluster.stop()
