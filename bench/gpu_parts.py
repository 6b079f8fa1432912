#!/usr/bin/env python3
"""The parts of bench/gpu.sh that need Python with PyTorch. Prints a Markdown table and writes the rows as JSON.

  gpu_parts.py PART --rows FILE [--device cpu] [--seconds N]

Exit code 0: every check held (goals are printed and do not count), 1: a check failed, 77: not possible here."""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cluster import Cluster  # noqa: E402

ROWS = []
FAILED = []


def row(name, ours, reference, unit, goal, note, ratio=None, repetitions=1):
    """Adds a figure: `ratio` is ours ÷ reference unless given."""
    ROWS.append({"name": name, "ratio": ours / reference if ratio is None else ratio, "ours": ours,
                 "reference": reference, "unit": unit, "goal": goal, "repetitions": repetitions, "note": note})


def check(name, good, note):
    ROWS.append({"name": name, "passed": bool(good), "note": note})
    if not good:
        FAILED.append(f"{name}: {note}")


def skip(why):
    print(why, file=sys.stderr)
    sys.exit(77)


def clock():
    return time.perf_counter()


def synchronize(device):
    if device == "cuda":
        import torch
        torch.cuda.synchronize()


class Servers:
    """A cluster of one node for the time of a `with`."""

    def __init__(self, arena_bytes, folder=None, every=1_000_000):
        self.cluster = Cluster(arena_bytes=arena_bytes, data=folder, agent_settings=[f"disk.every={every}"])

    def __enter__(self):
        try:
            return self.cluster.start()
        except BaseException:
            self.cluster.stop()
            raise

    def __exit__(self, *unused):
        self.cluster.stop()


# ---- step: what a checkpoint at every step costs a training ----

def step(args):
    import torch
    import torch.nn.functional  # noqa: F401
    from nanogpt import GPT

    import holdfast.torch as hf
    large = args.device == "cuda"
    # 1.2 × 10⁹ parameters with AdamW in float32: 14.5 GB of state.
    width, layers, length, batch = (2048, 24, 1024, 4) if large else (64, 2, 32, 2)
    torch.manual_seed(0)
    model = GPT(50304 if large else 256, length, width, width // 64, layers).to(args.device)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=large)
    parameters = sum(one.numel() for one in model.parameters())
    state_bytes = parameters * 12
    tokens = torch.randint(256, (batch, length), device=args.device)

    def train():
        optim.zero_grad()
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(tokens, tokens)
        loss.backward()
        optim.step()
        return loss

    train()
    folder = tempfile.mkdtemp(prefix="gpu-step")
    with Servers(int(state_bytes * 3.3) + (256 << 20), folder) as cluster:
        ckpt = hf.Checkpointer("step", {"model": model, "optim": optim}, socket_path=cluster.socket())
        ckpt.restore()
        number = iter(range(1, 1_000_000))
        sealed, host = [], []
        for _ in range(12):  # the first saves touch and register the slots
            begin, at = clock(), next(number)
            ckpt.save(at)
            host.append(clock() - begin)
            ckpt.wait(at, hf.Tier.SEALED, 120)
            sealed.append(clock() - begin)
            ckpt.wait(at, hf.Tier.MEMORY, 60)
            train()
        row("gpu_first_save", sealed[0], sealed[9], "s", "<=1.2", f"{state_bytes / 1e9:.1f} GB until sealed: "
            "the first save ÷ the tenth")

        def steps(count, save):
            synchronize(args.device)
            begin = clock()
            for _ in range(count):
                train()
                if save:
                    host_begin, accepted = clock(), ckpt.save(next(number))
                    if accepted:
                        host.append(clock() - host_begin)
            synchronize(args.device)
            return (clock() - begin) / count

        rounds = [(steps(8, False), steps(8, True)) for _ in range(3 if large else 2)]
        plain, saving = (statistics.median(column) for column in zip(*rounds))
        row("gpu_train_step", saving * 1e3, plain * 1e3, "ms", "<=1.01",
            f"{parameters / 1e9:.2f}e9 parameters, a step with a checkpoint ÷ without", repetitions=len(rounds))
        ckpt.close()
    blocked = statistics.median(host)
    pending = []
    others = {"torch.save": lambda path: torch.save({"m": model.state_dict(), "o": optim.state_dict()}, path)}
    try:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        others["dcp.async_save"] = lambda path: pending.append(
            dcp.async_save(dict(zip(("m", "o"), get_state_dict(model, optim))), checkpoint_id=path))
    except Exception as error:  # an older PyTorch
        print(f"no dcp.async_save here: {error}", file=sys.stderr)
    for name, save in others.items():
        begin = clock()
        save(f"{folder}/{name}")
        took = clock() - begin
        row("gpu_blocked_" + name.replace(".", "_"), blocked * 1e3, took * 1e3, "ms", "", "the loop is blocked per "
            f"save: {name} ÷ Holdfast", ratio=took / blocked)
    for future in pending:
        future.result()
    subprocess.run(["rm", "-rf", folder], check=False)


# ---- many: the host's work in save() ----

def many(args):
    import torch

    import holdfast.torch as hf
    state = {"tensors": {f"layer.{i}.weight": torch.randn(64, device=args.device) for i in range(10_000)}}
    took = []
    with Servers(256 << 20) as cluster, hf.Checkpointer("many", state, socket_path=cluster.socket()) as ckpt:
        for number in range(30):
            begin = clock()
            ckpt.save(number)
            took.append((clock() - begin) * 1e3)
            ckpt.guard()
            ckpt.wait(number, hf.Tier.MEMORY, 60)
    usual = statistics.median(took[5:])
    row("gpu_save_10000_tensors", usual, 1.0, "ms", "<=1", "save() of 10,000 tensors, after the first",
        repetitions=len(took) - 5)


# ---- trainings in processes of their own ----

class Training:
    """bench/gpu_train.py as a process, and its log."""

    def __init__(self, args, cluster, job, *options, environment=()):
        self.log = pathlib.Path(tempfile.mkstemp(prefix="gpu-train")[1])
        command = [sys.executable, "-B", str(HERE / "gpu_train.py"), "--socket", cluster.socket(), "--job", job,
                   "--log", str(self.log), "--device", args.device, *options]
        if args.device == "cpu":
            command += ["--width", "64"]
        self.process = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **dict(environment)})

    def records(self):
        """The whole lines so far."""
        text = self.log.read_text()
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def finish(self, seconds):
        try:
            errors = self.process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            errors = self.process.communicate()[1]
        print(errors, file=sys.stderr)
        records = self.records()
        self.log.unlink()
        return self.process.returncode, records


def digest_of(records, **wanted):
    for record in records:
        if "digest" in record and all(record.get(key) == value for key, value in wanted.items()):
            return record["digest"]
    return None


def kill(args):
    steps = 120
    rng = random.Random(7)
    until = clock() + args.seconds - 20
    with Servers(512 << 20) as cluster:
        code, reference = Training(args, cluster, "reference", "--steps", str(steps)).finish(120)
        losses = {one["step"]: one["loss"] for one in reference if "step" in one}
        if code != 0 or len(losses) != steps:
            return check("gpu_kill_reference", False, f"the run without kills ended with {code}")
        kills, lost, different, digest = 0, [0], [], None
        reached = -1
        while digest is None and clock() < until:
            training = Training(args, cluster, "killed", "--steps", str(steps))
            # A few steps on, and then at a random time within a step.
            target = reached + rng.randint(2, max(2, steps // 20))
            while kills < 20 and training.process.poll() is None and clock() < until:
                seen = [one["step"] for one in training.records() if "step" in one]
                if seen and seen[-1] >= min(target, steps - 2):
                    time.sleep(rng.random() * 0.05)
                    training.process.kill()
                    kills += 1
                    break
                time.sleep(0.002)
            _, records = training.finish(120)
            first = next((one["first"] for one in records if "first" in one), None)
            if first is not None and reached >= 0:
                lost.append(reached + 1 - first)
            for one in records:
                if "step" in one:
                    reached = max(reached, one["step"])
                    if one["loss"] != losses[one["step"]]:
                        different.append(one["step"])
            digest = digest_of(records, end=True)
        check("gpu_kill_identical", digest == digest_of(reference, end=True) and not different,
              f"{kills} kills: losses that differ: {different[:5]}, state equal: "
              f"{digest is not None and digest == digest_of(reference, end=True)}")
        check("gpu_kill_lost_steps", max(lost) <= 1, f"at most {max(lost)} steps trained again after a kill")
        check("gpu_kill_count", kills >= 20, f"{kills} of 20 kills in the time")


def modes(args):
    found = {"plain": ([], {}), "stream": (["--mode", "stream"], {}),
             "expandable_segments": ([], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
             "cuda_graph": (["--mode", "graph"], {}), "compile": (["--mode", "compile"], {})}
    if args.device == "cpu":
        found = {"plain": found["plain"]}
    until = clock() + args.seconds - 10
    for name, (options, environment) in found.items():
        with Servers(512 << 20) as cluster:
            left = max(5, until - clock())
            code, saved = Training(args, cluster, name, "--steps", "12", "--save-at", "5", *options,
                                   environment=environment).finish(left)
            wanted = digest_of(saved, at=5)
            left = max(5, until - clock())
            _, restored = Training(args, cluster, name, "--restore-only", environment=environment).finish(left)
            check(f"gpu_mode_{name}", code == 0 and wanted and digest_of(restored) == wanted,
                  f"exit code {code}; the bytes saved at step 5, while training went on, came back: "
                  f"{wanted is not None and digest_of(restored) == wanted}")


def fault(args):
    if args.device != "cuda":
        skip("only a device has illegal accesses")
    with Servers(512 << 20) as cluster:
        code, saved = Training(args, cluster, "fault", "--steps", "12", "--fault-at", "5").finish(args.seconds / 2)
        check("gpu_fault_error", code not in (0, None), f"the training ended with {code}")
        _, restored = Training(args, cluster, "fault", "--restore-only").finish(args.seconds / 2)
        first = next((one["first"] for one in restored if "first" in one), None)
        same = digest_of(restored) == digest_of(saved, at=5)
        check("gpu_fault_restore", first in (6, 7) and (same or first == 7),
              f"restored for step {first}; the bytes of step 5 are equal: {same}")


NCCL_JOB = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl", init_method="file://" + os.environ["GROUP"], rank=0, world_size=1)
x = torch.ones(1 << 20, device="cuda")
for _ in range(20):
    dist.all_reduce(x)
torch.cuda.synchronize()
assert x[0].item() == 1
dist.destroy_process_group()
"""


def nccl(args):
    if args.device != "cuda":
        skip("NCCL needs a device")
    import torch
    with tempfile.TemporaryDirectory() as folder:
        plugin = pathlib.Path(os.environ["HOLDFAST_CUDA_PLUGIN"]).with_name("libnccl-profiler-holdfast.so")
        done = subprocess.run(
            [sys.executable, "-c", NCCL_JOB], capture_output=True, text=True, timeout=args.seconds - 5, check=False,
            env={**os.environ, "GROUP": f"{folder}/group", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL",
                 "NCCL_PROFILER_PLUGIN": str(plugin),
                 "LD_LIBRARY_PATH": f"{plugin.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"})
    text = done.stdout + done.stderr
    lines = [line for line in text.splitlines() if "rofiler" in line]
    print("\n".join(lines[:40]), file=sys.stderr)
    check("gpu_nccl_job", done.returncode == 0, f"NCCL {torch.cuda.nccl.version()}, exit code {done.returncode}")
    loaded = [line for line in lines if "holdfast" in line.lower() and "fail" not in line.lower()]
    check("gpu_nccl_plugin", loaded, (loaded or lines or ["NCCL's log does not mention a profiler"])[0][-160:])


def nvml(args):
    with Servers(64 << 20) as cluster:
        log = cluster.root / "n0/agent.log"
        until = clock() + 10
        while clock() < until and "GpuErrors" not in log.read_text():
            time.sleep(0.2)
        lines = [line for line in log.read_text().splitlines() if "GpuErrors" in line]
    if args.device != "cuda":
        skip((lines or ["the agent logged nothing about GPUs"])[0][-200:])
    check("gpu_nvml_watch", any("GpuErrorsWatched" in line for line in lines),
          (lines or ["the agent logged nothing about GPUs"])[0][-200:])


def table():
    figures = [one for one in ROWS if "ratio" in one]
    checks = [one for one in ROWS if "passed" in one]
    lines = []
    if figures:
        lines += ["| figure | ratio | goal | ours | reference | |", "|---|---:|---|---:|---:|---|"]
        lines += [f"| {one['name']} | {one['ratio']:.3f} | {one['goal']} | {one['ours']:.3f} {one['unit']} | "
                  f"{one['reference']:.3f} {one['unit']} | {one['note']} |" for one in figures]
    if figures and checks:
        lines.append("")
    if checks:
        lines += ["| check | result | |", "|---|---|---|"]
        lines += [f"| {one['name']} | {'passed' if one['passed'] else 'FAILED'} | {one['note']} |" for one in checks]
    return "\n".join(lines)


def main():
    parts = {function.__name__: function for function in (step, many, kill, modes, fault, nccl, nvml)}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=parts)
    parser.add_argument("--rows", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=int, default=300)
    args = parser.parse_args()
    if args.device == "cuda":
        import torch
        if not torch.cuda.is_available():
            skip("PyTorch finds no CUDA device here")
    try:
        parts[args.part](args)
    except Exception as error:
        check(f"gpu_{args.part}", False, f"{type(error).__name__}: {error}")
        import traceback
        traceback.print_exc()
    print(table())
    part = args.rows.with_suffix(".part")
    part.write_text(json.dumps(ROWS) + "\n")
    part.rename(args.rows)
    print("\n".join(FAILED), file=sys.stderr)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
