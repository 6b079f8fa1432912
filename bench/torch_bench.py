#!/usr/bin/env python3
"""Holdfast beside torch.save and torch.distributed.checkpoint: the same state, disk and run.

bench/run.sh torch [--parameters N] [--repeat N] [--dir DIR] [--json FILE]

For each way of saving: how long the loop is blocked a save, how long until the bytes are durable
(synced to the disk), how long restoring takes. Every figure is the median of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/python"))

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from cluster import Cluster  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402

import holdfast.torch as hf  # noqa: E402


class Shapes(nn.Module):
    """The parameters of a GPT of about `wanted` parameters, and nothing of what it does with
    them."""

    def __init__(self, wanted):
        super().__init__()
        width = 768 if wanted > 50e6 else 256
        layers = max(1, round((wanted - 50304 * width) / (12 * width * width)))
        self.token = nn.Embedding(50304, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            self.blocks.append(nn.ModuleDict({
                "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                "out": nn.Linear(width, width), "norm2": nn.LayerNorm(width),
                "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}))


class State:
    def __init__(self, parameters):
        torch.manual_seed(0)
        self.model = Shapes(parameters)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.step()
        self.bytes = sum(t.nbytes for t in self.model.parameters()) + sum(
            t.nbytes for entry in self.optim.state.values() for t in entry.values())

    def step(self):
        self.optim.step()

    def dicts(self):
        model, optim = get_state_dict(self.model, self.optim)
        return {"model": model, "optim": optim}

    def load(self, dicts):
        set_state_dict(self.model, self.optim, model_state_dict=dicts["model"],
                       optim_state_dict=dicts["optim"])


def sync(folder):
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def torch_save(state, folder, repeat):
    path = folder / "state.pt"
    for _ in range(repeat):
        begin = time.perf_counter()
        torch.save({"model": state.model.state_dict(), "optim": state.optim.state_dict()}, path)
        blocked = time.perf_counter() - begin
        sync(folder)
        durable = time.perf_counter() - begin
        state.step()

        def restore():
            found = torch.load(path, weights_only=True)
            state.model.load_state_dict(found["model"])
            state.optim.load_state_dict(found["optim"])
        yield blocked, durable, seconds(restore)


def dcp_restore(state, path):
    dicts = state.dicts()
    dcp.load(dicts, checkpoint_id=path)
    state.load(dicts)


def dcp_save(state, folder, repeat, save=dcp.save):
    for i in range(repeat):
        path = folder / str(i)
        begin = time.perf_counter()
        future = save(state.dicts(), checkpoint_id=path)
        blocked = time.perf_counter() - begin
        if save is dcp.async_save:
            future.result()
        sync(path)
        durable = time.perf_counter() - begin
        state.step()
        yield blocked, durable, seconds(lambda: dcp_restore(state, path))
        shutil.rmtree(path)


def dcp_async_save(state, folder, repeat):
    return dcp_save(state, folder, repeat, dcp.async_save)


def holdfast(state, folder, repeat):
    """Blocked: save() and what the guard waits for in the step that follows 50 ms of other work."""
    bytes = 3 * (state.bytes + (64 << 20)) + (256 << 20)
    cluster = Cluster(arena_bytes=bytes, data=folder).start()
    try:
        whole = {"model": state.model, "optim": state.optim}
        options = {"socket_path": cluster.socket()}
        with hf.Checkpointer("bench", whole, **options) as ckpt:
            ckpt.save(0)  # describes the state
            ckpt.wait(0, hf.Tier.DISK, 600)
        for i in range(1, repeat + 1):
            with hf.Checkpointer("bench", whole, **options) as ckpt:
                restored = seconds(ckpt.restore)
                ckpt.save(2 * i, wait_for_slot=600)
                ckpt.wait(2 * i, hf.Tier.DISK, 600)
                state.step()
                begin = time.perf_counter()
                ckpt.save(2 * i + 1, wait_for_slot=600)
                saved = time.perf_counter() - begin
                time.sleep(max(0.05, state.bytes / 1.5e9))  # forward and backward
                guarded = seconds(ckpt.guard)
                ckpt.wait(2 * i + 1, hf.Tier.DISK, 600)
                yield saved + guarded, time.perf_counter() - begin, restored
    finally:
        cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=float, default=160e6)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    state = State(args.parameters)
    print(f"{state.bytes / 1e9:.2f} GB of state, median of {args.repeat}\n")
    print("| | blocked a save | until durable | restore |\n|---|---:|---:|---:|")
    found = {}
    for name, way in {"torch.save": torch_save, "dcp.save": dcp_save,
                      "dcp.async_save": dcp_async_save, "holdfast": holdfast}.items():
        folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir))
        try:
            rows = list(way(state, folder, args.repeat))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        median = [statistics.median(column) for column in zip(*rows)]
        found[name] = dict(zip(("blocked_s", "durable_s", "restore_s"), median))
        print(f"| {name} | {1000 * median[0]:.1f} ms | {median[1]:.2f} s | {median[2]:.2f} s |",
              flush=True)
    ours = found["holdfast"]
    blocked = found["dcp.async_save"]["blocked_s"] / ours["blocked_s"]
    durable = found["torch.save"]["durable_s"] / ours["durable_s"]
    restored = found["dcp.save"]["restore_s"] / ours["restore_s"]
    print(f"\nblocked {blocked:.1f} times less than dcp.async_save, durable {durable:.2f} times as "
          f"fast as torch.save, restored {restored:.2f} times as fast as dcp.load")
    if args.json:
        args.json.write_text(json.dumps({"bytes": state.bytes, **found}, indent=1))


if __name__ == "__main__":
    main()
