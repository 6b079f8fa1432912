#!/usr/bin/env python3
"""Compares Holdfast with torch.save, safetensors, DeepSpeed and torch.distributed.checkpoint: the same
state on the same disk in one run.

bench/run.sh torch [--quick] [--ranks 1,4] [--repeat N] [--steps N] [--into docs/benchmarks.md]

A GPT is trained with AdamW on random tokens. The figures of each way of saving are:

- how long a save blocks the loop: the call, and the wait after forward and backward, before the optimizer's step;
- the same with a short pause in place of forward and backward;
- how long until the bytes are durable (synced to the disk);
- how long a restore takes;
- the memory in addition to that of the training;
- the slowdown of the training when it saves at every step.

Figures are medians of the repetitions, each of the slowest rank. With several ranks, the state is sharded by FSDP2 over
gloo. Each rank computes with one thread. The reference for the disk is fio's best time for as many bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

here = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parent / "tests/python")]

import ranks  # noqa: E402
from cluster import Cluster  # noqa: E402

#: The warm-up of a job after a restore, in which Holdfast touches the pages of its slots.
SETTLE_S = 1.5
COLUMNS = ("blocked_s", "blocked_short_s", "durable_s", "restore_s", "memory_bytes", "slowdown",
           "plain_step_s")


def seconds(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


class MemoryPeak:
    """The peak memory of all ranks and their child processes between two calls."""

    def __init__(self, pids):
        from torch_ways import memory
        self.sample = lambda: memory([*pids, *self.children(pids)])
        self.peak = self.sample()
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
            self.peak = max(self.peak, self.sample())

    def take(self):
        """Returns the peak since the last call."""
        peak, self.peak = self.peak, self.sample()
        return peak

    def end(self):
        self.stop.set()
        self.thread.join()
        return self.take()


def measure(name, parameters, folder, socket, args):
    """Runs in each rank. Returns one row of the columns per repetition, and the state's bytes."""
    import torch.distributed as dist
    from torch_ways import WAYS, State
    if not dist.is_initialized():  # one rank; dcp.async_save in a process needs a group
        dist.init_process_group("gloo", init_method=f"file://{folder}.group", rank=0, world_size=1)
    world = dist.get_world_size()
    pids = [None] * world
    dist.all_gather_object(pids, os.getpid())
    peak = MemoryPeak(pids) if pids[0] == os.getpid() else None
    state = State(parameters, args.tokens)
    if peak:
        peak.take()
    state.work()
    state.step()
    base = peak.take() if peak else 0
    way = WAYS[name](state, pathlib.Path(folder), socket)
    numbers = iter(range(1, 1_000_000))
    rows = []
    for i in range(args.repeat + 1):
        dist.barrier()
        row = repetition(way, state, numbers, args, warm_up=i == 0)
        if i > 0:
            rows.append(row)
    dist.barrier()
    extra = max(0, peak.end() - base) if peak else 0
    slowdown, plain_step = slow_down(way, state, numbers, args.steps)
    way.close()
    dist.barrier()
    if world == 1:
        dist.destroy_process_group()
    return [[*row, extra, slowdown, plain_step] for row in rows], state.bytes


def repetition(way, state, numbers, args, warm_up):
    """Returns seconds: blocked, blocked with short work, until durable, and of a restore."""
    import torch.distributed as dist

    def blocked(work):
        dist.barrier()
        took = seconds(way.save, next(numbers))
        work()
        return took + seconds(way.before_step)

    def settled():
        way.durable()
        dist.barrier()

    real = short = 0.0
    if not warm_up:
        real = blocked(state.work)
        state.step()
        settled()
        short = blocked(lambda: time.sleep(args.pause))
        settled()
    begin = time.perf_counter()
    way.save(next(numbers))
    way.durable()
    durable = time.perf_counter() - begin
    way.before_step()
    dist.barrier()
    way.restart()
    dist.barrier()
    restored = seconds(way.restore)
    time.sleep(SETTLE_S)
    return [real, short, durable, restored]


def slow_down(way, state, numbers, steps):
    """Returns the time of a training that saves at every step ÷ without saves, and the seconds of a step without."""
    import torch.distributed as dist

    def run(save):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            state.work()
            if save:
                way.before_step()
            state.step()
            if save:
                way.save(next(numbers))
        dist.barrier()
        took = time.perf_counter() - begin
        if save:
            way.before_step()
            way.durable()
        return took

    before, with_saves, after = run(False), run(True), run(False)
    plain = (before + after) / 2
    return with_saves / plain, plain / steps


def save_many(socket, tensors=10_000, saves=50):
    """Returns the seconds of each save() of a dictionary of small tensors, with no other work in progress."""
    import torch

    import holdfast.torch as hf
    state = {"tensors": {f"layer.{i}.weight": torch.randn(64) for i in range(tensors)}}
    took = []
    with hf.Checkpointer("many", state, socket_path=socket) as ckpt:
        for number in range(saves + 5):
            took.append(seconds(ckpt.save, number))
            ckpt.guard()
            ckpt.wait(number, hf.Tier.DISK, 60)
    return took[5:]


def measure_many():
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cluster = Cluster(arena_bytes=256 << 20, data=pathlib.Path(folder)).start()
        try:
            took, = ranks.run(1, save_many, cluster.socket(), timeout=300)
        finally:
            cluster.stop()
    return {"median_s": statistics.median(took), "least_s": min(took), "most_s": max(took),
            "saves": len(took)}


def fio(directory, bytes, files, quick):
    """Returns the least seconds for as many bytes in as many files, written concurrently and synced. None without
    fio. The settings are those of fio.cc."""
    def once(block, depth):
        with tempfile.TemporaryDirectory(prefix="bench-", dir=directory) as folder:
            found = subprocess.run(
                ["fio", "--name=fio", f"--directory={folder}", "--filename_format=fio.$jobnum",
                 "--ioengine=io_uring", "--direct=1", "--rw=write", f"--bs={block}",
                 f"--iodepth={depth}", f"--size={bytes // files >> 20}M", f"--numjobs={files}",
                 "--end_fsync=1", "--fallocate=native", "--output-format=json"],
                capture_output=True, text=True, check=True)
        jobs = json.loads(found.stdout[found.stdout.index("{"):])["jobs"]
        return max(job["job_runtime"] for job in jobs) / 1000
    if not shutil.which("fio"):
        return None
    return min(once(block, depth) for block in (1 << 20, 4 << 20)
               for depth in ((16,) if quick else (4, 16, 32)) for _ in range(1 if quick else 2))


def measure_way(name, world, args):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir))
    cluster = None
    try:
        socket = None
        if name == "Holdfast":
            each = args.parameters * 12 / world * 1.1 + (64 << 20)
            cluster = Cluster(arena_bytes=int(world * (3 * each + (64 << 20))), data=folder).start()
            socket = cluster.socket()
        found = ranks.run(world, measure, name, args.parameters, str(folder), socket, args,
                          timeout=1200)
    finally:
        if cluster:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".group").unlink(missing_ok=True)
    # The slowest rank of each repetition.
    repetitions = zip(*(rows for rows, _ in found))
    slowest = [[max(column) for column in zip(*rows)] for rows in repetitions]
    return dict(zip(COLUMNS, zip(*slowest))), sum(bytes for _, bytes in found)


def medians(samples):
    """Returns the median of each column over the repetitions."""
    return {column: statistics.median(values) for column, values in samples.items()}


def table(world, bytes, found, disk_s):
    plain_s = statistics.median(row["plain_step_s"] for row in found.values())
    lines = [f"| {bytes / 1e9:.2f} GB on {world} rank{'s' if world > 1 else ''} | blocked per save | "
             "blocked, short work | until durable | restore | additional memory | "
             "step, saving every step |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, row in found.items():
        lines.append(
            f"| {name} | {1000 * row['blocked_s']:.1f} ms | {1000 * row['blocked_short_s']:.1f} ms "
            f"| {row['durable_s']:.2f} s | {row['restore_s']:.2f} s | "
            f"{row['memory_bytes'] / 1e9:.2f} GB | {row['slowdown']:.2f} |")
    if disk_s:
        lines.append(f"| *disk: fio's best* | | | {disk_s:.2f} s | | | |")
    return "\n".join(lines) + f"\n\nA step without saves takes {plain_s:.2f} s."


def row(name, theirs, ours, goal, note):
    """Returns a result in the format of all benchmarks: the ratio of the other way's time to Holdfast's."""
    spread = [their / our for their, our in zip(theirs, ours)]
    their, our = statistics.median(theirs), statistics.median(ours)
    return {"name": name, "ratio": their / our, "ours": our, "reference": their, "unit": "s",
            "goal": goal, "repetitions": len(ours), "spread": [min(spread), max(spread)],
            "note": note}


def rows_of(world, samples, disk_s):
    """Returns the results that have goals, and their context."""
    ours = samples["Holdfast"]
    others = samples["dcp.async_save, thread"]
    saved = samples["torch.save"]["durable_s"]
    ranks_text = f"torch_{world}_"
    result = [
        row(ranks_text + "blocked", others["blocked_s"], ours["blocked_s"], ">=20",
            "dcp.async_save ÷ Holdfast: loop blocked per save"),
        row(ranks_text + "blocked_short", others["blocked_short_s"], ours["blocked_short_s"], "",
            "the same with short work between save and step"),
        row(ranks_text + "durable", saved, ours["durable_s"], ">=3",
            "torch.save ÷ Holdfast: until durable"),
        row(ranks_text + "restore", samples["dcp.save"]["restore_s"], ours["restore_s"], ">=2",
            "dcp.load ÷ Holdfast"),
        row(ranks_text + "step", ours["slowdown"], [1.0] * len(ours["slowdown"]), "",
            "a step with a save ÷ without")]
    if disk_s:
        result.append(row(ranks_text + "disk", [disk_s] * len(ours["durable_s"]),
                          ours["durable_s"], "", "fio's best ÷ Holdfast until durable: 1 is the full disk rate"))
        result.append(row(ranks_text + "disk_limit", saved, [disk_s] * len(saved), "",
                          "torch.save ÷ fio's best: the largest possible ratio"))
    return result


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, one repetition: a check that it works")
    parser.add_argument("--parameters", type=float, default=175e6)
    parser.add_argument("--tokens", type=int, default=64, help="tokens per step, of all ranks together")
    parser.add_argument("--ranks", default="1,4")
    parser.add_argument("--ways", help="measure only the ways whose names contain this")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of the training that saves each step")
    parser.add_argument("--pause", type=float, default=0.25,
                        help="seconds of the short work between a save and the next step")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rows", type=pathlib.Path, help="file for the results as JSON, for the front end")
    parser.add_argument("--into", type=pathlib.Path, help="a page whose table and plot are updated")
    args = parser.parse_args()
    if args.quick:
        args.parameters, args.repeat, args.steps = 20e6, 1, 2
    return args


def measure_world(world, names, args):
    """Returns the result for one number of ranks, its text, and its rows."""
    samples, bytes = {}, 0
    for name in names:
        print(f"{name}, {world} ranks", file=sys.stderr, flush=True)
        try:
            samples[name], bytes = measure_way(name, world, args)
        except AssertionError as error:
            print(f"{name} failed: {str(error).splitlines()[-1]}", file=sys.stderr)
    if not samples:
        raise SystemExit(f"no way of saving could be measured with {world} ranks; the errors are above")
    disk_s = fio(args.dir, bytes, world, args.quick)
    found = {name: medians(columns) for name, columns in samples.items()}
    text = [table(world, bytes, found, disk_s)]
    rows = []
    if {"Holdfast", "torch.save", "dcp.save", "dcp.async_save, thread"} <= samples.keys():
        rows = rows_of(world, samples, disk_s)
        text.append("| ratio | | least – most | goal |\n|---|---:|---:|---|\n" + "\n".join(
            f"| {one['note']} | {one['ratio']:.2f} | {one['spread'][0]:.2f} – "
            f"{one['spread'][1]:.2f} | {one['goal']} |" for one in rows)
            + f"\n\nMedians of {args.repeat} repetitions.")
    return {"bytes": bytes, "ways": found, "disk_s": disk_s}, text, rows


def main():
    args = arguments()
    from torch_ways import WAYS
    names = [name for name in WAYS if not args.ways or args.ways in name]
    if importlib.util.find_spec("deepspeed") is None:
        names = [name for name in names if not name.startswith("DeepSpeed")]
    results, text, rows = {}, [], []
    for world in [int(number) for number in args.ranks.split(",")]:
        results[world], text_of_world, rows_of_world = measure_world(world, names, args)
        text += text_of_world
        rows += rows_of_world
    if not args.ways or args.ways in "Holdfast":
        many = measure_many()
        text.append("| | median | least | goal |\n|---|---:|---:|---:|\n"
                    f"| `save()` of 10,000 tensors, after the first | "
                    f"{1000 * many['median_s']:.2f} ms | {1000 * many['least_s']:.2f} ms | "
                    "<= 1 ms |")
        rows.append({"name": "torch_save_10000_tensors", "ratio": 1000 * many["median_s"],
                     "ours": 1000 * many["median_s"], "reference": 1, "unit": "ms", "goal": "<=1",
                     "repetitions": many["saves"],
                     "spread": [1000 * many["least_s"], 1000 * many["most_s"]],
                     "note": "save() of 10,000 tensors, after the first"})
    print("\n" + "\n\n".join(text))
    if args.rows:
        args.rows.write_text(json.dumps(rows))
    if args.into:
        from torch_plot import renew
        renew(args.into, "\n\n".join(text), results)


if __name__ == "__main__":
    main()
