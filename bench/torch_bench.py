#!/usr/bin/env python3
"""Holdfast beside torch.save, safetensors and torch.distributed.checkpoint: one state, disk, run.

bench/run.sh torch [--parameters N] [--ranks 1,4] [--repeat N] [--into docs/benchmarks.md]

For each way of saving: how long the loop is blocked a save, how long until the bytes are durable
(synced to the disk), how long restoring takes, the memory it takes beside the state, and how much
slower a training is that saves at every step. Figures are medians of the repetitions, of the
slowest rank. With several ranks the state is sharded by FSDP2, over gloo; each computes with one
thread.
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
import threading
import time

here = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parent / "tests/python")]

import ranks  # noqa: E402
from cluster import Cluster  # noqa: E402

#: After a restore a job warms up; Holdfast takes the pages of its slots meanwhile.
SETTLE_S = 1.5
COLUMNS = ("blocked_s", "durable_s", "restore_s", "memory_bytes", "slowdown")


def seconds(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


class MemoryPeak:
    """The most that all ranks, and the processes that they started, have beside what they had."""

    def __init__(self, pids):
        from torch_ways import memory
        self.look = lambda: memory([*pids, *self.children(pids)])
        self.begin = self.peak = self.look()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def children(pids):
        for pid in pids:
            for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    yield from path.read_text().split()
                except OSError:
                    pass

    def run(self):
        while not self.stop.wait(0.02):
            self.peak = max(self.peak, self.look())

    def end(self):
        self.stop.set()
        self.thread.join()
        return max(0, self.peak - self.begin)


def measure(name, parameters, folder, socket, repeat, work_s, steps):
    """In each rank: rows of the five columns."""
    import torch.distributed as dist
    from torch_ways import WAYS, State
    if not dist.is_initialized():  # one rank; dcp.async_save in a process needs a group
        dist.init_process_group("gloo", init_method=f"file://{folder}.group", rank=0, world_size=1)
    world = dist.get_world_size()

    def together():
        dist.barrier()

    state = State(parameters)
    pids = [None] * world
    dist.all_gather_object(pids, os.getpid())
    peak = MemoryPeak(pids) if pids[0] == os.getpid() else None
    way = WAYS[name](state, pathlib.Path(folder), socket)
    numbers = iter(range(1, 1_000_000))
    rows = []
    for i in range(repeat + 1):
        together()
        blocked = seconds(way.save, next(numbers))
        time.sleep(work_s)  # forward and backward, on a device
        blocked += seconds(way.before_step)
        state.step()
        way.durable()
        together()
        begin = time.perf_counter()
        way.save(next(numbers))
        way.durable()
        durable = time.perf_counter() - begin
        way.before_step()
        state.step()
        together()
        way.restart()
        together()
        restored = seconds(way.restore)
        time.sleep(SETTLE_S)
        if i > 0:  # the first warms up
            rows.append([blocked, durable, restored])
    together()
    extra = peak.end() if peak else 0
    slowdown = slow_down(way, state, numbers, steps, together)
    way.close()
    together()
    if world == 1:
        dist.destroy_process_group()
    return [[*row, extra, slowdown] for row in rows], state.bytes


def slow_down(way, state, numbers, steps, together):
    """A training that saves at every step, beside itself without."""
    import torch
    left, right = torch.randn(768, 768), torch.randn(768, 768)

    def step():
        for _ in range(30):
            torch.mm(left, right)

    def run(save):
        together()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
            if save:
                way.before_step()
            state.step()
            if save:
                way.save(next(numbers))
        took = time.perf_counter() - begin
        if save:
            way.before_step()
            way.durable()
        return took

    run(False)
    return statistics.median(run(True) / run(False) for _ in range(2))


def measure_way(name, world, args):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir))
    cluster = None
    try:
        socket = None
        if name == "Holdfast":
            each = args.parameters * 12 / world * 1.1 + (64 << 20)
            cluster = Cluster(arena_bytes=int(world * (3 * each + (64 << 20))), data=folder).start()
            socket = cluster.socket()
        found = ranks.run(world, measure, name, args.parameters, str(folder), socket, args.repeat,
                          args.work, args.steps, timeout=1200)
    finally:
        if cluster:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".group").unlink(missing_ok=True)
    # Of each repetition the slowest rank; of these the median.
    repetitions = zip(*(rows for rows, _ in found))
    slowest = [[max(column) for column in zip(*rows)] for rows in repetitions]
    return dict(zip(COLUMNS, (statistics.median(column) for column in zip(*slowest)))), \
        sum(bytes for _, bytes in found)


def table(world, bytes, found):
    lines = [f"| {bytes / 1e9:.2f} GB on {world} rank{'s' if world > 1 else ''} | blocked a save | "
             "until durable | restore | memory beside the state | step, saving every step |",
             "|---|---:|---:|---:|---:|---:|"]
    for name, row in found.items():
        lines.append(
            f"| {name} | {1000 * row['blocked_s']:.1f} ms | {row['durable_s']:.2f} s | "
            f"{row['restore_s']:.2f} s | {row['memory_bytes'] / 1e9:.2f} GB | "
            f"{row['slowdown']:.2f} |")
    return "\n".join(lines)


def ratios(found):
    """What the goals are about."""
    ours = found["Holdfast"]
    return {"blocked": (found["dcp.async_save, thread"]["blocked_s"] / ours["blocked_s"], ">= 20"),
            "durable": (found["torch.save"]["durable_s"] / ours["durable_s"], ">= 3"),
            "restore": (found["dcp.save"]["restore_s"] / ours["restore_s"], ">= 2")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=175e6)
    parser.add_argument("--ranks", default="1,4")
    parser.add_argument("--ways", help="part of a name; all are measured without it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of the training that saves each step")
    parser.add_argument("--work", type=float, default=0.25,
                        help="seconds between a save and the step that changes what it reads")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--into", type=pathlib.Path, help="a page whose table and plot are renewed")
    args = parser.parse_args()
    from torch_ways import WAYS
    names = [name for name in WAYS if not args.ways or args.ways in name]
    results, text = {}, []
    for world in [int(number) for number in args.ranks.split(",")]:
        found = {}
        for name in names:
            print(f"{name}, {world} ranks", file=sys.stderr, flush=True)
            try:
                found[name], bytes = measure_way(name, world, args)
            except AssertionError as error:
                print(f"{name} failed: {str(error).splitlines()[-1]}", file=sys.stderr)
        results[world] = {"bytes": bytes, "ways": found}
        text.append(table(world, bytes, found))
        if {"Holdfast", "torch.save", "dcp.save", "dcp.async_save, thread"} <= found.keys():
            results[world]["ratios"] = {key: value for key, (value, _) in ratios(found).items()}
            text.append("; ".join(f"{key} {value:.2f} (goal {goal})"
                                  for key, (value, goal) in ratios(found).items()))
    print("\n" + "\n\n".join(text))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.into:
        from torch_plot import renew
        renew(args.into, "\n\n".join(text), results)


if __name__ == "__main__":
    main()
