"""A small training with a model that can be distributed over ranks in several ways."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch import nn

import holdfast.torch as hf


class Model(nn.Module):
    """A model with sizes that do not divide evenly and are large enough to be cut, and a parameter
    with fewer elements than ranks."""

    def __init__(self, seed, inner=100):
        super().__init__()
        torch.manual_seed(seed)
        self.wte = nn.Embedding(131, 64)
        self.up = nn.Linear(64, inner)
        self.down = nn.Linear(inner, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 131, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        x = self.wte(tokens)
        x = self.norm(x + self.down(torch.relu(self.up(x))) * self.scale)
        return self.head(x)


def spread(model, kind):
    """Distributes `model`: plain, ddp, fsdp, hsdp (2 replicas), tp_fsdp (2-way tensor parallel)."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if kind == "plain":
        return model
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
    elif kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel, RowwiseParallel, parallelize_module)
        both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, both["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = both["dp"]
    fully_shard(model.up, mesh=mesh)
    fully_shard(model.down, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def build(kind, seed):
    model = spread(Model(seed), kind)
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.01)}


def train(state, step, kind="ddp"):
    """Runs one step on this rank's data, which depends only on step and rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    if kind == "tp_fsdp":
        rank //= 2  # ranks that share a tensor share the data
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, 131, (4, 9), generator=generator)
    state["optim"].zero_grad()
    logits = state["model"](tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    state["optim"].step()
    with torch.no_grad():
        for name, buffer in state["model"].named_buffers():
            buffer += 1
    return loss.item()


def full_tensors(state):
    """All full tensors of the state, gathered by torch: name → tensor."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict)
    options = StateDictOptions(full_state_dict=True)
    found = {f"model.{name}": value
             for name, value in get_model_state_dict(state["model"], options=options).items()}
    if state["optim"].state:
        optimizer = get_optimizer_state_dict(state["model"], state["optim"], options=options)
        found |= {f"optim.{name}.{key}": value for name, entry in optimizer["state"].items()
                  for key, value in entry.items()}
    return {name: value.detach().clone() for name, value in found.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    for name, value in expected.items():
        a, b = found[name], value
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), name


# --------------------------------------------------------------------------- functions of the ranks

def uninterrupted_then_killed(kind, job, steps, killed_at):
    """Trains to the end and stores the result. Then trains again with saves, and dies."""
    reference = build(kind, seed=1)
    losses = [train(reference, step, kind) for step in range(steps)]
    expected = full_tensors(reference)
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save((losses, expected), os.environ["HOLDFAST_TEST_REFERENCE"])
    state = build(kind, seed=1)
    ckpt = hf.Checkpointer(job, state)
    assert ckpt.restore() == 0
    for step in range(killed_at):
        train(state, step, kind)
        ckpt.save(step, wait_for_slot=10)
    ckpt.wait(killed_at - 1)
    train(state, killed_at, kind)  # this step is lost
    if dist.is_initialized():
        dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def resume(kind, job, steps, killed_at):
    """Restores into a differently initialised state and trains to the end. The result must be equal."""
    state = build(kind, seed=2)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == killed_at
        losses = [train(state, step, kind) for step in range(killed_at, steps)]
        found = full_tensors(state)
    if not dist.is_initialized() or dist.get_rank() == 0:
        before, expected = torch.load(os.environ["HOLDFAST_TEST_REFERENCE"])
        assert losses == before[killed_at:]
        assert_same(found, expected)
    return True


def pattern(name, shape, dtype, stage):
    count = torch.Size(shape).numel()
    seed = sum(name.encode()) + 7919 * stage
    return (torch.arange(count, dtype=torch.float64) * 0.5 + seed).to(dtype).reshape(shape)


def fill(state, stage):
    """Sets every tensor to values that are unique per position. torch itself distributes them."""
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict, get_optimizer_state_dict)
    tensors = {f"model.{name}": value for name, value in
               get_model_state_dict(state["model"]).items()}
    optimizer = get_optimizer_state_dict(state["model"], state["optim"])
    tensors |= {f"optim.{name}.{key}": value for name, entry in optimizer["state"].items()
                for key, value in entry.items()}
    with torch.no_grad():
        for name, tensor in tensors.items():
            values = pattern(name, tensor.shape, tensor.dtype, stage)
            if isinstance(tensor, DTensor):
                values = distribute_tensor(values, tensor.device_mesh, tensor.placements)
                tensor._local_tensor.copy_(values._local_tensor)
            else:
                tensor.copy_(values)


def change_world(kind, job, stage):
    """Checks that the restored state is that of the previous world, and saves another one."""
    state = build(kind, seed=3 + stage)
    model = hf.replicated(state["model"]) if kind == "tp_fsdp" else state["model"]
    with hf.Checkpointer(job, {**state, "model": model},
                         on_reshape={"model.steps": "first"}) as ckpt:
        step = ckpt.restore()
        assert step == stage
        if stage > 0:
            found = full_tensors(state)
            assert_same(found, {name: pattern(name, value.shape, value.dtype, stage - 1)
                                for name, value in found.items()})
            assert len(found) > 30
        fill(state, stage)
        ckpt.save(stage)
        ckpt.wait(stage)
        stats = ckpt.stats()
    return stats["bytes_copied"]


def save_once(kind, job, size):
    """Saves large and small tensors. Returns the bytes that this rank copied, the bytes of the tensors,
    and the ranks that saved each tensor."""
    torch.manual_seed(0)
    model = spread(Model(0), kind)
    big = {f"w{i}": nn.Parameter(torch.rand(rows, size)) for i, rows in enumerate((7, 300, 1000))}
    big["tiny"] = torch.rand(256)
    with hf.Checkpointer(job, {"model": model, "big": hf.replicated(big)},
                         random_states=False) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        ours = sum(t.shape.numel() * t.element_size() if hasattr(t, "element_size") else 0
                   for t in big.values())
        with ckpt.open_version() as reader:
            savers = {name: [piece.rank for piece in reader.pieces() if piece.name == f"big.{name}"]
                      for name in big}
        return ckpt.stats()["bytes_copied"], ours, savers


def save_initial(kind, job, inner):
    """Saves the initial model, distributed by torch."""
    model = spread(Model(0, inner), kind)
    with hf.Checkpointer(job, {"model": hf.replicated(model)}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)


def compare_initial(job, inner):
    """Restores in one process, and compares with the initial model."""
    model = Model(1, inner)
    with hf.Checkpointer(job, {"model": model}) as ckpt:
        assert ckpt.restore() == 1
    expected = Model(0, inner).state_dict()
    assert_same(model.state_dict(), expected)
