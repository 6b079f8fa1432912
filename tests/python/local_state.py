"""States that differ between ranks, for test_replicas.py. They run in separate processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import holdfast.torch as hf


class Loader:
    """An object with state_dict() and load_state_dict()."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = state


class Normalised(nn.Module):
    """A module with a parameter and a buffer that its ranks do not share."""

    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((256, 64), float(value)))
        self.register_buffer("mean", torch.full((256, 64), float(value)))


def own(value, rank):
    """A state of rank-local tensors."""
    return {"ef": {"error_feedback": torch.full((256, 64), float(value)),
                   "small": torch.full((3,), float(value))},
            "expert": Normalised(value),
            "loader": Loader(perm=torch.full((20000 + rank,), int(value)))}


def save_own(job):
    rank = dist.get_rank()
    with hf.Checkpointer(job, own(rank + 1, rank)) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)


def restore_own(job, **options):
    state = own(-1, 0)
    with hf.Checkpointer(job, state, **options) as ckpt:
        assert ckpt.restore() == 1
    return {"tree": state["ef"]["error_feedback"].unique().tolist(),
            "small": state["ef"]["small"].unique().tolist(),
            "expert": state["expert"].weight.unique().tolist(),
            "buffer": state["expert"].mean.unique().tolist(),
            "perm": state["loader"].state["perm"].tolist()}


def reshape_own(job):
    """Restores in another world. Returns the error without decisions, and the result of each decision."""
    try:
        restore_own(job)
    except hf.StateMismatchError as error:
        refused = str(error)
    found = {action: restore_own(job, on_reshape={"ef": action, "expert": action, "loader": loader_action})
             for action, loader_action in (("first", "first"), ("mean", "drop"), ("zero", "drop"),
                                   ("drop", "drop"))}
    return refused, found


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.norm = nn.Linear(64, 1000), nn.BatchNorm1d(1000)
        self.down = nn.Linear(1000, 1)

    def forward(self, x):
        return self.down(self.norm(self.up(x)))


def mixed(seed, mode):
    """A shared model and rank-local tensors, some of them under names that only one rank has."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    rank, model = dist.get_rank(), Net(seed)
    if mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    value = float(rank + 1) if seed == 1 else 0.0
    return {"carry": {f"h{rank}": torch.full((300,), value), "x": torch.full((5,), value)},
            "model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.1)}


def step(state, number):
    torch.manual_seed(100 * number + dist.get_rank())
    state["optim"].zero_grad()
    state["model"](torch.randn(8, 64)).square().mean().backward()
    state["optim"].step()


def local_bytes(state):
    """The bytes of all tensors on this rank."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, optim = get_state_dict(state["model"], state["optim"])
    tensors = {**model, **{f"{name}.{key}": value for name, entry in optim["state"].items()
                           for key, value in entry.items()}, **state["carry"]}
    return {name: getattr(value, "_local_tensor", value).detach().contiguous().reshape(-1)
            .view(torch.uint8).numpy().tobytes() for name, value in tensors.items()}


def save_mixed(job, mode):
    """The first save has no optimizer state yet."""
    state = mixed(1, mode)
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0)
        step(state, 0)
        ckpt.save(1, wait_for_slot=30)
        ckpt.wait(1)
        return ckpt.stats()["bytes_copied"], local_bytes(state)


def restore_mixed(job, mode):
    state = mixed(2, mode)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 2
    return local_bytes(state)


def save_trainable(job):
    """Saves adapters of a frozen model, and a dictionary of some of its tensors. Returns the names."""
    model = nn.ModuleDict({"base": nn.Linear(512, 512), "lora": nn.Linear(512, 4)})
    model["base"].requires_grad_(False)
    with torch.no_grad():
        model["lora"].weight.fill_(7)
    some = {name: value for name, value in model.named_parameters() if "lora" in name}
    with hf.Checkpointer(job, {"model": model, "some": some}, trainable_only=True) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        with ckpt.open_version() as reader:
            names = sorted({piece.name for piece in reader.pieces()})
    other = nn.ModuleDict({"base": nn.Linear(512, 512), "lora": nn.Linear(512, 4)})
    other["base"].requires_grad_(False)
    kept = other["base"].weight.clone()
    some = {name: value for name, value in other.named_parameters() if "lora" in name}
    with hf.Checkpointer(job, {"model": other, "some": some}, trainable_only=True) as ckpt:
        assert ckpt.restore() == 1
    assert (other["lora"].weight == 7).all() and torch.equal(other["base"].weight, kept)
    return names


def save_in_format_1(job):
    """Saves as releases without rank-local tensors did."""
    from holdfast.torch import checkpointer, plan
    checkpointer._FORMAT = 1
    plan.Plan.qualifier = lambda self, stored: ""
    with hf.Checkpointer(job, own(5, 0)) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)


def save_alone(job):
    with hf.Checkpointer(job, own(5, 0)) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)


def declared(value):
    return {"ef": hf.replicated({"error_feedback": torch.full((256, 64), float(value))}),
            "loader": hf.replicated(Loader(perm=torch.full((9,), int(value))))}


def save_declared(job):
    with hf.Checkpointer(job, declared(4)) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        assert ckpt.stats()["bytes_copied"] < 0.9 * 256 * 64 * 4


def restore_declared(job):
    state = declared(0)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 1
    return {"tree": state["ef"].thing["error_feedback"].unique().tolist(),
            "perm": state["loader"].thing.state["perm"].unique().tolist()}


def save_and_wait(ckpt, step):
    assert ckpt.save(step, wait_for_slot=60)
    ckpt.wait(step, timeout=120)
    dist.barrier()


def diverge(job, begin, odd):
    """Trains until all bytes were compared once. Then one rank changes a weight by one bit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2000), nn.Linear(2000, 8))
    state = {"model": nn.parallel.DistributedDataParallel(model),
             "own": {"x": torch.full((99,), float(dist.get_rank()))}}
    with hf.Checkpointer(job, state, random_states=False) as ckpt:
        assert ckpt.restore() == begin
        ckpt.connect()
        count = ckpt._samples.count
        for step in range(begin, begin + 2 * count):
            if step == begin + count and dist.get_rank() == odd:
                ckpt.guard()
                model[0].weight.data.view(torch.int32)[1900, 3] ^= 1
            save_and_wait(ckpt, step)
    return count


def train_healthy(job, saves):
    """Trains with equal replicas, including NaNs. One rank skips a save. Then one bit of a NaN
    changes."""
    rank = dist.get_rank()
    state = mixed(1, "ddp")
    state["nan"] = hf.replicated({"x": torch.full((6000,), float("nan"))})
    nan = state["nan"].thing["x"]
    with hf.Checkpointer(job, state, random_states=False) as ckpt:
        for number in range(saves):
            step(state, number)
            if number == 20 and rank == 1:
                continue
            assert ckpt.save(number, wait_for_slot=60)
            if number == 20:
                continue
            ckpt.wait(number, timeout=120)
            dist.barrier()
        count = ckpt._samples.count
        if rank == 1:
            ckpt.guard()
            nan.view(torch.int32)[5000] ^= 1
        assert nan.isnan().all()
        for number in range(saves, saves + count):
            save_and_wait(ckpt, number)
    return count


def save_ddp_alone(job):
    """Saves a replicated model on one rank. Returns the names of its tensors and extras."""
    model = nn.Linear(64, 1000)
    with hf.Checkpointer(job, {"model": hf.replicated(model)}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        with ckpt.open_version() as reader:
            return [piece.name for piece in reader.pieces()], list(reader.extras()[0])


def change_samples(job):
    """Rank 1 differs in bytes that every save samples. Then the state grows, which moves the sample
    boundaries, and rank 1 gets the same values as the others."""
    x = torch.zeros(16 << 10)
    x[:] = dist.get_rank()
    state = {"a": hf.replicated({"x": x})}
    entry = state["a"].thing
    with hf.Checkpointer(job, state, random_states=False) as ckpt:
        ckpt.connect()
        first = ckpt._samples.count
        for number in range(first):
            save_and_wait(ckpt, number)
        entry["grown"] = torch.zeros(300 << 10)
        save_and_wait(ckpt, first)
        x.zero_()
        second = ckpt._samples.count
        for number in range(first + 1, first + 1 + second):
            save_and_wait(ckpt, number)
    return first, second
