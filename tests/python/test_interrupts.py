"""Ctrl-C during a save, a restore, a wait or the exit, and worker processes of the trainer."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import holdfast
import holdfast.torch as hf
import pytest
import torch
from torch import nn

LOOP = """
import os, sys, time, torch
import holdfast.torch as hf
torch.manual_seed(0)
model = torch.nn.Linear(300, 300)
optim = torch.optim.AdamW(model.parameters())
print("ready", flush=True)
with hf.Checkpointer(sys.argv[1], {"model": model, "optim": optim}) as ckpt:
    first = ckpt.restore()
    print("begun", flush=True)
    for step in range(first, first + 100000):
        optim.zero_grad()
        model(torch.full((4, 300), float(step % 7))).square().mean().backward()
        optim.step()
        ckpt.save(step, wait_for_slot=60)
        if step % 3 == 0:
            ckpt.wait(step)
"""


def build(seed):
    torch.manual_seed(seed)
    model = nn.Linear(300, 300)
    return {"model": model, "optim": torch.optim.AdamW(model.parameters())}


def test_ctrl_c_ends_a_trainer_at_any_point(cluster, job):
    random.seed(5)
    newest = 0
    for round in range(6):
        child = subprocess.Popen([sys.executable, "-c", LOOP, job], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        if round % 2:
            assert child.stdout.readline() == "begun\n"
        time.sleep(random.random() * 0.5)
        os.kill(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=200)
        assert child.returncode != 0 and "KeyboardInterrupt" in errors, errors
        # There is no other error, and the next start continues from the saved version.
        assert "Segmentation" not in errors and "InternalError" not in errors, errors
        with hf.Checkpointer(job, build(round)) as ckpt:
            step = ckpt.restore()
        assert step >= newest
        newest = step
    assert newest > 0


def test_ctrl_c_in_a_wait(cluster, job):
    with hf.Checkpointer(job, build(0)) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ckpt.wait(0, hf.Tier.REMOTE, timeout=300)
        assert time.monotonic() - before < 60
        assert ckpt.save(1, wait_for_slot=10)  # saving still works
        ckpt.wait(1)


def test_ctrl_c_while_there_is_no_agent(job, tmp_path):
    ckpt = hf.Checkpointer(job, build(0), socket_path=str(tmp_path / "none"))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ckpt.restore(timeout=300)
    ckpt.close()
    with pytest.raises(holdfast.FailedPreconditionError):
        ckpt.save(0)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.full((300,), float(i)) + torch.rand(1)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_do_not_affect_saves(cluster, job, context):
    state = build(0)
    with hf.Checkpointer(job, state) as ckpt:
        step = ckpt.restore()
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=1,
                                             multiprocessing_context=context)
        for x in loader:
            state["optim"].zero_grad()
            state["model"](x).square().mean().backward()
            state["optim"].step()
            assert ckpt.save(step, wait_for_slot=10)
            step += 1
        ckpt.wait(step - 1)
        assert ckpt.health().ok
    again = build(1)
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 3
    for name, value in state["model"].state_dict().items():
        assert torch.equal(value, again["model"].state_dict()[name])


@pytest.mark.skipif(not os.environ.get("HOLDFAST_LARGE"), reason="needs 4 GiB: HOLDFAST_LARGE=1")
@pytest.mark.parametrize("gib", [1, 2])
def test_one_large_tensor(job, gib):
    from cluster import Cluster
    cluster = Cluster(arena_bytes=3 * (gib << 30) + (64 << 20)).start()
    try:
        os.environ["HOLDFAST_SOCKET"] = cluster.socket()
        count = (gib << 30) // 4
        tensor = torch.arange(count, dtype=torch.int32)
        with hf.Checkpointer(job, {"t": {"x": tensor}}, connect_timeout=300.0) as ckpt:
            ckpt.save(0)
            ckpt.wait(0, timeout=300)
        other = torch.zeros(count, dtype=torch.int32)
        with hf.Checkpointer(job, {"t": {"x": other}}) as ckpt:
            assert ckpt.restore(timeout=300) == 1
        assert torch.equal(tensor, other)
    finally:
        os.environ.pop("HOLDFAST_SOCKET", None)
        cluster.stop()
