"""The ways of saving that bench/torch_bench.py compares, and the state that they save."""

from __future__ import annotations

import os
import pathlib
import sys

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import holdfast.torch as hf

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "client/examples/nanogpt"))
from train import Block  # noqa: E402

TOKENS = 50304


class GPT(nn.Module):
    """A GPT of about `wanted` parameters. The embedding is also the head's weight but has only one name, because
    not all ways of saving recognise tied tensors."""

    LENGTH = 256

    def __init__(self, wanted):
        super().__init__()
        width = 768 if wanted > 50e6 else 256
        layers = max(1, round((wanted - TOKENS * width) / (12 * width * width)))
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(self.LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.place.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.token.weight).flatten(0, 1),
                               targets.flatten())


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class State:
    """A model and its AdamW optimizer; several ranks shard them by FSDP2. `bytes` is this rank's part. A step
    trains on `tokens` tokens of all ranks together."""

    def __init__(self, parameters, tokens):
        torch.manual_seed(0)
        self.tokens = max(1, tokens // dist.get_world_size())
        self.model = GPT(parameters)
        if dist.get_world_size() > 1:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        self.work()
        self.step()
        self.bytes = sum(local(t).nbytes for t in self.model.parameters()) + sum(
            local(t).nbytes for entry in self.optim.state.values() for t in entry.values())

    def work(self):
        """Runs forward and backward of one sequence."""
        tokens = torch.randint(TOKENS, (1, self.tokens + 1))
        self.model(tokens[:, :-1], tokens[:, 1:]).backward()

    def step(self):
        self.optim.step()
        self.optim.zero_grad()

    def dicts(self):
        model, optim = get_state_dict(self.model, self.optim)
        return {"model": model, "optim": optim}

    def load(self, dicts):
        set_state_dict(self.model, self.optim, model_state_dict=dicts["model"],
                       optim_state_dict=dicts["optim"])

    def tensors(self):
        """Returns this rank's local tensors by name."""
        found = {f"model.{name}": local(t) for name, t in self.model.named_parameters()}
        for index, entry in enumerate(self.optim.state.values()):
            found |= {f"optim.{index}.{key}": local(t) for key, t in entry.items()}
        return found


def sync(folder):
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Way:
    """Saves and restores `state`. Between save() and before_step() the loop does other work. durable() returns
    when the last save is synced to the disk."""

    def __init__(self, state, folder, socket):
        self.state, self.folder, self.socket = state, folder, socket
        self.rank = dist.get_rank()

    def save(self, number):
        raise NotImplementedError

    def before_step(self):
        pass

    def durable(self):
        sync(self.path)

    def restart(self):
        """Called before restore(): simulates the job's next start."""

    def restore(self):
        raise NotImplementedError

    def close(self):
        pass


class TorchSave(Way):
    """torch.save; each rank writes its own file."""

    def save(self, number):
        self.path = self.folder / f"rank-{self.rank}"
        self.path.mkdir(exist_ok=True)
        torch.save(self.state.tensors(), self.path / "state.pt")

    def restore(self):
        found = torch.load(self.path / "state.pt", weights_only=True)
        with torch.no_grad():
            for name, tensor in self.state.tensors().items():
                tensor.copy_(found[name])


class Safetensors(TorchSave):
    def save(self, number):
        self.path = self.folder / f"rank-{self.rank}"
        self.path.mkdir(exist_ok=True)
        safetensors.torch.save_file(self.state.tensors(), self.path / "state.safetensors")

    def restore(self):
        found = safetensors.torch.load_file(self.path / "state.safetensors")
        with torch.no_grad():
            for name, tensor in self.state.tensors().items():
                tensor.copy_(found[name])


class FastFileWriter(TorchSave):
    """DeepSpeed's writer: torch.save through a pinned buffer and libaio. On CPUs it lacks one function."""

    BUFFER_BYTES = 256 << 20

    def __init__(self, state, folder, socket):
        super().__init__(state, folder, socket)
        from deepspeed.io import fast_file_writer
        from deepspeed.ops.op_builder import AsyncIOBuilder
        from deepspeed.ops.op_builder.utils import UtilsBuilder
        fast_file_writer.UtilsBuilder = UtilsBuilder  # DeepSpeed's version for GPUs also works on CPUs
        self.handle = AsyncIOBuilder().load(verbose=False).aio_handle(8 << 20, 32, False, True, 1)
        self.buffer = self.handle.new_cpu_locked_tensor(self.BUFFER_BYTES,
                                                        torch.empty(0, dtype=torch.uint8))

    def save(self, number):
        from deepspeed.io import FastFileWriter, FastFileWriterConfig
        self.path = self.folder / f"rank-{self.rank}"
        self.path.mkdir(exist_ok=True)
        path = self.path / "state.pt"
        path.unlink(missing_ok=True)  # the writer overwrites an existing file without truncating it
        writer = FastFileWriter(str(path), FastFileWriterConfig(self.handle, self.buffer))
        torch.save(self.state.tensors(), writer, _use_new_zipfile_serialization=False)
        writer.close()


class DcpSave(Way):
    def save(self, number):
        self.path = self.folder / str(number % 2)
        dcp.save(self.state.dicts(), checkpoint_id=self.path)

    def restore(self):
        dicts = self.state.dicts()
        dcp.load(dicts, checkpoint_id=self.path)
        self.state.load(dicts)


class DcpAsync(DcpSave):
    kind = AsyncCheckpointerType.THREAD
    future = None

    def __init__(self, state, folder, socket):
        super().__init__(state, folder, socket)
        self.group = dist.new_group(backend="gloo")  # keeps its collectives apart from the loop's

    def save(self, number):
        self.path = self.folder / str(number % 2)
        if self.future is not None:
            self.future.result()  # async_save supports only one save at a time
        self.future = dcp.async_save(self.state.dicts(), checkpoint_id=self.path,
                                     process_group=self.group,
                                     async_checkpointer_type=self.kind)

    def durable(self):
        self.future.result()
        sync(self.path)

    def close(self):
        if self.future is not None:
            self.future.result()


class DcpProcess(DcpAsync):
    kind = AsyncCheckpointerType.PROCESS


class Holdfast(Way):
    def __init__(self, state, folder, socket):
        super().__init__(state, folder, socket)
        self.start()

    def start(self):
        self.ckpt = hf.Checkpointer("bench", {"model": self.state.model, "optim": self.state.optim},
                                    socket_path=self.socket, connect_timeout=60.0)

    def save(self, number):
        self.number = number
        self.ckpt.save(number, wait_for_slot=600)

    def before_step(self):
        self.ckpt.guard()

    def durable(self):
        self.ckpt.wait(self.number, hf.Tier.DISK, 600)

    def restart(self):
        self.ckpt.close()
        self.start()

    def restore(self):
        self.ckpt.restore()

    def close(self):
        self.ckpt.close()


WAYS = {"torch.save": TorchSave, "safetensors": Safetensors,
        "DeepSpeed FastFileWriter": FastFileWriter, "dcp.save": DcpSave,
        "dcp.async_save, thread": DcpAsync, "dcp.async_save, process": DcpProcess,
        "Holdfast": Holdfast}


def memory(pids):
    """Returns the bytes of these processes' private memory and of all shared memory on the machine."""
    total = 0
    for pid in pids:
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in status.splitlines()
                     if line.startswith("RssAnon:"))
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            total += int(line.split()[1]) << 10
    return total
