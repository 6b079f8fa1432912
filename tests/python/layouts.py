"""Trainings with unusual distributions of their state, for test_layouts.py. They run in separate
processes."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import holdfast.torch as hf

STEPS, KILLED_AT = 6, 3


def _normalised():
    """A model with rank-local buffers, and a generator that each step uses."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = nn.Sequential(nn.Linear(16, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.3),
                          nn.Linear(33, 1))
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def _two_groups():
    """Two pairs of ranks train one model each. One rank of a pair saves most of its tensors."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += dist.get_rank() // 2
    return nn.parallel.DistributedDataParallel(model, process_group=pairs[dist.get_rank() // 2])


def _build(kind, seed):
    torch.manual_seed(seed)
    model = {"normalised": _normalised, "two groups": _two_groups}[kind]()
    torch.manual_seed(10 * seed + dist.get_rank())  # for the dropout
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.01)}


def _train(state, step):
    x = torch.rand(8, 16, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
    state["optim"].zero_grad()
    state["model"](x).square().mean().backward()
    state["optim"].step()


def _bytes(state):
    """This rank's parts of the parameters, buffers and optimizer state, by name."""
    def local(tensor):
        return getattr(tensor, "_local_tensor", tensor).detach().clone()
    found = {name: local(value) for name, value in state["model"].state_dict().items()}
    for name, parameter in state["model"].named_parameters():
        found |= {f"{name}.{key}": local(value)
                  for key, value in state["optim"].state[parameter].items()}
    return {**found, "random": torch.get_rng_state()}


def train_uninterrupted(kind, job):
    state = _build(kind, 1)
    for step in range(STEPS):
        _train(state, step)
    return _bytes(state)


def train_and_die(kind, job):
    state = _build(kind, 1)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 0
        for step in range(KILLED_AT):
            _train(state, step)
            ckpt.save(step, wait_for_slot=60)
        ckpt.wait(KILLED_AT - 1, timeout=60)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def resume_training(kind, job):
    state = _build(kind, 2)
    with hf.Checkpointer(job, state) as ckpt:
        began = ckpt.restore()
        for step in range(began, STEPS):
            _train(state, step)
    return began, _bytes(state)


def _sharded(seed):
    """A sharded model without buffers: each rank saves all that it holds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(seed)
    model = fully_shard(nn.Sequential(nn.Linear(48, 96), nn.Linear(96, 48)),
                        mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.01)}


def _whole(state):
    """The values of all ranks: the parameters and their moments, by name."""
    model, optim = state["model"], state["optim"]
    found = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        found |= {f"{name}.{key}": getattr(v, "full_tensor", lambda v=v: v)().clone()
                  for key, v in optim.state[p].items()}
    return found


def save_sharded(job):
    state = _sharded(1)
    for step in range(2):
        state["optim"].zero_grad()
        state["model"](torch.ones(4, 48) * (step + 1)).square().mean().backward()
        state["optim"].step()
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0, wait_for_slot=60)
        ckpt.wait(0, timeout=60)
    return _whole(state)


def restore_sharded(job):
    state = _sharded(2)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 1
    return _whole(state)


def tensors_of(step):
    generator = torch.Generator().manual_seed(step)
    return {"w": torch.rand(1 << 22, generator=generator), "step": step}


def save_asynchronously_and_die(job, moment):
    """Saves version 1 completely, and dies while version 2 is written."""
    dcp.save(tensors_of(1), storage_writer=hf.StorageWriter(job, step=1))
    dcp.async_save(tensors_of(2), storage_writer=hf.StorageWriter(job, step=2))
    time.sleep(moment)
    os.kill(os.getpid(), signal.SIGKILL)


def load(job):
    found = {"w": torch.zeros(1 << 22), "step": 0}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    return found


def _pattern(rows):
    """Values that are unique per position, also beyond 4 GiB."""
    first = torch.arange(1 << 20, dtype=torch.int64)
    return (first + (row << 20) for row in range(rows))


def _large(gib, folder):
    """A tensor of zeros in memory or, with a folder, in a file."""
    shape = (gib << 7, 1 << 20)
    if folder is None:
        return torch.zeros(shape, dtype=torch.int64)
    with open(f"{folder}/large", "wb") as file:
        file.truncate(gib << 30)
    return hf.file_tensor(f"{folder}/large", torch.int64, shape)


def save_large(job, gib, folder):
    tensor = _large(gib, folder)
    for row, values in zip(tensor, _pattern(gib << 7)):
        row.copy_(values)
    ckpt = hf.Checkpointer(job, {"large": {"t": tensor}}, slots=2)
    ckpt.save(0, wait_for_slot=60)
    ckpt.wait(0, timeout=500)
    os.kill(os.getpid(), signal.SIGKILL)


def restore_large(job, gib, folder):
    tensor = _large(gib, folder)
    with hf.Checkpointer(job, {"large": {"t": tensor}}, slots=2) as ckpt:
        assert ckpt.restore(timeout=500) == 1
    return all(torch.equal(row, values) for row, values in zip(tensor, _pattern(gib << 7)))
