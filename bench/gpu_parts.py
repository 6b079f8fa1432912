#!/usr/bin/env python3
"""The parts of bench/gpu.sh that need Python with PyTorch. Prints a Markdown table and writes the rows as JSON.

  gpu_parts.py PART --rows FILE [--device cpu] [--seconds N]

Exit code 0: every check held (goals are printed and do not count), 1: a check failed, 77: not possible here."""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cluster import Cluster  # noqa: E402

ROWS = []
FAILED = []
FILE = None


def write_rows():
    """Writes what is known so far: the part may run out of time."""
    if FILE is not None:
        part = FILE.with_suffix(".part")
        part.write_text(json.dumps(ROWS) + "\n")
        part.rename(FILE)


def row(name, ours, reference, unit, goal, note, ratio=None, repetitions=1):
    """Adds a figure: `ratio` is ours ÷ reference unless given."""
    ROWS.append({"name": name, "ratio": ours / reference if ratio is None else ratio, "ours": ours,
                 "reference": reference, "unit": unit, "goal": goal, "repetitions": repetitions, "note": note})
    write_rows()


def check(name, good, note):
    ROWS.append({"name": name, "passed": bool(good), "note": note})
    if not good:
        FAILED.append(f"{name}: {note}")
    write_rows()


def not_here(name, why):
    """Adds a check that this machine cannot make."""
    ROWS.append({"name": name, "passed": None, "note": f"skipped: {why}"})
    write_rows()


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

class Timer:
    """The time of work on the device's time line by two events; on a CPU the wall time."""

    def __init__(self, device):
        self.device = device
        if device == "cuda":
            import torch
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.begin = self.end = 0.0

    def start(self):
        synchronize(self.device)
        if self.device == "cuda":
            self.events[0].record()
        self.begin = clock()

    def stop(self):
        """Returns the seconds on the device, and by the wall clock."""
        if self.device == "cuda":
            self.events[1].record()
        synchronize(self.device)
        wall = clock() - self.begin
        return (self.events[0].elapsed_time(self.events[1]) / 1e3 if self.device == "cuda" else wall), wall


class PinnedCopies:
    """The least that any checkpoint from a device does: copies every tensor into pinned memory on another stream, and
    lets the optimizer wait for that."""

    def __init__(self, model, optim):
        import torch
        self.torch = torch
        self.tensors = [one.detach() for one in model.parameters()]
        self.tensors += [one for state in optim.state.values() for one in state.values() if one.is_cuda]
        memory = torch.empty(sum(one.nbytes for one in self.tensors), dtype=torch.uint8, pin_memory=True)
        self.places, at = [], 0
        for one in self.tensors:
            self.places.append(memory[at:at + one.nbytes].view(one.dtype).view(one.shape))
            at += one.nbytes
        self.stream, self.copied = torch.cuda.Stream(), None

    def save(self):
        self.stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(self.stream):
            for place, tensor in zip(self.places, self.tensors):
                place.copy_(tensor, non_blocking=True)
            self.copied = self.stream.record_event()

    def guard(self):
        if self.copied is not None:
            self.torch.cuda.current_stream().wait_event(self.copied)


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
    micro = 1  # batches of a step

    def train():
        optim.zero_grad()
        for _ in range(micro):
            with torch.autocast(args.device, torch.bfloat16):
                loss = model(tokens, tokens)
            loss.backward()
        optim.step()

    train()
    timer = Timer(args.device)
    folder = tempfile.mkdtemp(prefix="gpu-step")
    with Servers(int(state_bytes * 3.3) + (256 << 20), folder) as cluster:
        begin = clock()
        ckpt = hf.Checkpointer("step", {"model": model, "optim": optim}, socket_path=cluster.socket())
        ckpt.restore()
        ckpt.connect()
        while not ckpt.stats()["connected"] and clock() - begin < 60:
            time.sleep(0.005)
        ready = clock() - begin
        number = iter(range(1, 1_000_000))
        sealed, committed, host = [], [], []
        for _ in range(12):
            begin, at = clock(), next(number)
            ckpt.save(at)
            host.append(clock() - begin)
            ckpt.wait(at, hf.Tier.SEALED, 120)
            sealed.append(clock() - begin)
            ckpt.wait(at, hf.Tier.MEMORY, 60)
            committed.append(clock() - begin)
            train()
        row("gpu_slots_ready", ready, sealed[9], "s", "", "reserving and registering all slots by connect() ÷ a save")
        row("gpu_first_save", sealed[0], sealed[9], "s", "<=1.2", f"{state_bytes / 1e9:.1f} GB until sealed: "
            "the first save ÷ the tenth")

        # No step can be shorter than a save without skipping saves. A step of several batches is longer.
        timer.start()
        train()
        once = timer.stop()[1]
        micro = min(64, max(1, int(1.5 * statistics.median(committed[4:]) / once + 1)))

        def steps(count, save):
            """Returns the seconds of a step on the device and by the wall clock, and how many saves were skipped."""
            skipped, refused = ckpt.stats()["skipped"], 0
            timer.start()
            for _ in range(count):
                train()
                if save:
                    # A save without a free slot waits instead of being skipped. The wait counts in the ratio.
                    begin, accepted = clock(), ckpt.save(next(number), wait_for_slot=30)
                    host.append(clock() - begin)
                    refused += not accepted
            device, wall = timer.stop()
            return device / count, wall / count, refused + ckpt.stats()["skipped"] - skipped

        count = max(3, min(8, int(args.seconds / 8 / (once * micro))))
        rounds = [(*steps(count, False)[:2], *steps(count, True)) for _ in range(3)]
        plain, plain_wall, saving, saving_wall, _ = (statistics.median(column) for column in zip(*rounds))
        skipped = sum(one[4] for one in rounds)
        what = f"{parameters / 1e9:.2f}e9 parameters, {micro} batches a step, a step with a checkpoint ÷ without"
        row("gpu_train_step", saving * 1e3, plain * 1e3, "ms", "<=1.01", f"{what}, by the device's time line",
            repetitions=len(rounds))
        row("gpu_train_step_wall", saving_wall * 1e3, plain_wall * 1e3, "ms", "<=1.01", f"{what}, by the wall clock",
            repetitions=len(rounds))
        check("gpu_train_step_saved_all", skipped == 0, f"{skipped} of {len(rounds) * count} saves were skipped; the "
              f"ratio counts only with none. stats: {ckpt.stats()}")
        ckpt.close()
    if large:
        copies = PinnedCopies(model, optim)
        optim.register_step_pre_hook(lambda *unused: copies.guard())
        copied = []
        for _ in range(3):
            timer.start()
            for _ in range(count):
                train()
                copies.save()
            copied.append(timer.stop()[0] / count)
        row("gpu_train_step_pinned_copy", statistics.median(copied) * 1e3, plain * 1e3, "ms", "", "the same with one "
            "plain copy of each tensor into pinned memory, on another stream, in place of a checkpoint", repetitions=3)
        del copies
    blocked = statistics.median(host)
    for name, save in other_writers(model, optim, folder).items():
        begin = clock()
        try:
            finish = save(f"{folder}/{name}")
            took = clock() - begin
            if finish is not None:
                finish()
        except Exception as error:
            not_here("gpu_blocked_" + name.replace(".", "_"), f"{type(error).__name__}: {str(error)[:200]}")
            continue
        finally:
            subprocess.run(["rm", "-rf", f"{folder}/{name}"], check=False)  # the disk may not have room for all
        row("gpu_blocked_" + name.replace(".", "_"), blocked * 1e3, took * 1e3, "ms", "", "the loop is blocked per "
            f"save: {name} ÷ Holdfast", ratio=took / blocked)
    shutil.rmtree(folder, ignore_errors=True)


def other_writers(model, optim, folder):
    """Other ways of saving the same state, those that are here: name → a function of a path, which returns as soon as
    training may go on. Its result, if any, waits for the rest."""
    import torch

    def whole():
        return {"model": model.state_dict(), "optim": optim.state_dict()}

    found = {"torch.save": lambda path: torch.save(whole(), path)}
    try:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        found["dcp.async_save"] = lambda path: dcp.async_save(
            dict(zip(("m", "o"), get_state_dict(model, optim))), checkpoint_id=path).result
    except Exception as error:  # an older PyTorch
        print(f"no dcp.async_save here: {error}", file=sys.stderr)
    try:
        from deepspeed.io import FastFileWriter, FastFileWriterConfig  # noqa: F401
        found["deepspeed"] = lambda path: write_with_deepspeed(whole(), path)
    except Exception as error:
        print(f"no writer of DeepSpeed here: {error}", file=sys.stderr)
    return found


def write_with_deepspeed(state, path):
    """Saves through DeepSpeed's file writer, which torch.save uses as a file."""
    import torch
    from deepspeed.io import FastFileWriter, FastFileWriterConfig
    from deepspeed.ops.op_builder import AsyncIOBuilder
    handle = AsyncIOBuilder().load(verbose=False).aio_handle(block_size=1 << 20, queue_depth=32, single_submit=False,
                                                            overlap_events=True, intra_op_parallelism=1)
    pinned = torch.zeros(64 << 20, dtype=torch.uint8, device="cpu").pin_memory()
    writer = FastFileWriter(file_path=path, config=FastFileWriterConfig(
        dnvme_handle=handle, pinned_tensor=pinned, double_buffer=True, num_parallel_writers=1, writer_rank=0))
    torch.save(obj=state, f=writer, _use_new_zipfile_serialization=False)
    writer.close()


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


# ---- trainings in separate processes ----

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


def state_of(record):
    """What identifies the bytes of a state in a record of gpu_train.py."""
    return None if record is None else (record["digest"], record.get("more"))


def record_of(records, **wanted):
    return next((one for one in records if "digest" in one
                 and all(one.get(key) == value for key, value in wanted.items())), None)


def killed_job(args, cluster, name, wanted, steps, losses, until):
    """Trains `name` to its end and kills it `wanted` times on the way. Returns the number of kills, the steps that
    were trained again after each, the steps whose loss is not that of `losses`, and the last state."""
    rng = random.Random(name)
    kills, lost, different, state, reached = 0, [0], [], None, -1
    while state is None and clock() < until:
        training = Training(args, cluster, name, "--steps", str(steps))
        # A few steps on, and then at a random time within a step.
        target = reached + rng.randint(2, max(2, steps // wanted))
        while kills < wanted and training.process.poll() is None and clock() < until:
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
        state = state_of(record_of(records, end=True))
    return kills, lost, different, state


def kill(args):
    steps, jobs, kills_of_job = 120, 4, 5
    until = clock() + args.seconds - 20
    with Servers(2 << 30) as cluster, ThreadPoolExecutor(jobs) as pool:
        code, reference = Training(args, cluster, "reference", "--steps", str(steps)).finish(120)
        losses = {one["step"]: one["loss"] for one in reference if "step" in one}
        if code != 0 or len(losses) != steps:
            return check("gpu_kill_reference", False, f"the run without kills ended with {code}")
        ended = list(pool.map(lambda job: killed_job(args, cluster, f"killed{job}", kills_of_job, steps, losses, until),
                              range(jobs)))
        kills = sum(job[0] for job in ended)
        lost = max(max(job[1]) for job in ended)
        different = [step for job in ended for step in job[2]]
        end = state_of(record_of(reference, end=True))
        same = all(job[3] == end for job in ended)
        check("gpu_kill_identical", same and not different,
              f"{kills} kills of {jobs} jobs: losses that differ: {different[:5]}, states equal: {same}")
        check("gpu_kill_lost_steps", lost <= 1, f"at most {lost} steps trained again after a kill")
        check("gpu_kill_count", kills >= 20, f"{kills} of 20 kills in the time")


def modes(args):
    segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    # name: (options of both processes, options of the training, the step that is saved, environment)
    found = {"plain": ([], [], 5, {}), "first_save": ([], [], 0, {}),
             "stream": ([], ["--mode", "stream"], 5, {}), "per_thread": ([], ["--mode", "per_thread"], 5, {}),
             "managed": (["--mode", "managed"], [], 5, {}), "expandable_segments": ([], [], 5, segments),
             "cuda_graph": ([], ["--mode", "graph"], 5, {}), "compile": ([], ["--mode", "compile"], 5, {})}
    if args.device == "cpu":
        found = {name: found[name] for name in ("plain", "first_save")}
    until = clock() + args.seconds - 10

    def run(name):
        """Returns the training's exit code, the state that was saved, and the one that came back."""
        both, options, at, environment = found[name]
        code, saved = Training(args, cluster, name, "--steps", str(at + 7), "--save-at", str(at), *both, *options,
                               environment=environment).finish(until - clock())
        _, restored = Training(args, cluster, name, "--restore-only", *both,
                               environment=environment).finish(max(5, until - clock()))
        return code, state_of(record_of(saved, at=at)), state_of(record_of(restored))

    with Servers(2 << 30) as cluster, ThreadPoolExecutor(4) as pool:
        for name, (code, wanted, back) in zip(found, pool.map(run, found)):
            check(f"gpu_mode_{name}", code == 0 and wanted and back == wanted,
                  f"exit code {code}; the bytes saved, while training went on, came back: "
                  f"{wanted is not None and back == wanted}")


# ---- torn: updates in place during the copy ----

def torn(args):
    import torch

    import holdfast
    import holdfast.torch as hf
    large = args.device == "cuda"
    state = torch.zeros((1 << 28) if large else (4 << 20), device=args.device)  # float32: 1 GiB, or 16 MiB
    rng = random.Random(5)
    until = clock() + args.seconds - 15

    def attempts(job, guarded, share):
        """Saves, and changes the state at once. The next start of the job sees what the version has."""
        ended, tries, seen, found = clock() + share, 0, 0, 0
        expected = 0
        with Servers(int(state.nbytes * 3.3) + (128 << 20)) as cluster:
            for number in range(40):
                if clock() > ended:
                    break
                with hf.Checkpointer(job, {"state": {"t": state}}, socket_path=cluster.socket()) as ckpt:
                    first = ckpt.restore()
                    if expected:
                        tries += 1
                        whole = state.min().item() == state.max().item() == expected
                        seen += 0 if first == expected + 1 and whole else 1
                    expected = number + 1
                    state.fill_(expected)
                    assert ckpt.save(expected)
                    if guarded:
                        ckpt.guard()
                    for _ in range(3):
                        state.add_(1)
                        time.sleep(rng.random() * 0.005)
                    synchronize(args.device)
                    try:
                        ckpt.wait(expected, hf.Tier.MEMORY, 30)
                    except holdfast.HoldfastError as error:
                        print(f"try {number}: {error}", file=sys.stderr)
                        found, expected = found + 1, 0
        return tries + found, seen, found

    tries, seen, found = attempts("guarded", True, (until - clock()) / 2)
    check("gpu_torn_with_guard", tries > 2 and seen == 0 and found == 0,
          f"{tries} saves of {state.nbytes >> 20} MiB, each followed by updates: {seen + found} torn")
    tries, seen, found = attempts("unguarded", False, until - clock())
    check("gpu_torn_without_guard", seen + found > 0,
          f"{tries} saves without a guard: {found} torn versions detected and not committed, {seen} not detected. "
          f"None at all: the check with a guard is inconclusive")


def fault(args):
    if args.device != "cuda":
        skip("only a device has illegal accesses")
    # The copy must take longer than the driver needs to end the work of a device that has failed.
    large = 12 << 30
    # The small state and its images are below 256 MiB.
    with Servers(int(large * 3.2) + (512 << 20)) as cluster:
        options = ("--steps", "12", "--large", str(large))
        code, saved = Training(args, cluster, "fault", *options, "--fault-at", "3").finish(args.seconds * 0.6)
        end = next((one for one in saved if "fault" in one), {})
        errors = end.get("errors", {})
        check("gpu_fault_error", code == 3 and ("synchronize" in errors or "launch" in errors),
              f"{end.get('fault')}: exit code {code} (3: the training itself), errors: {errors}")
        _, restored = Training(args, cluster, "fault", "--restore-only", "--large", str(large)) \
            .finish(args.seconds * 0.35)
    first = next((one["first"] for one in restored if "first" in one), None)
    check("gpu_fault_in_copy", first == 3, f"restored for step {first}; 3: the version that was being copied when the "
          "device failed was not committed")
    wanted, back = state_of(record_of(saved, at=(first or 0) - 1)), state_of(record_of(restored))
    check("gpu_fault_restore", wanted is not None and back == wanted,
          f"the bytes of step {(first or 0) - 1} came back: {wanted is not None and back == wanted}")


# ---- nccl: the profiler plugin's records compared with NCCL's own log ----

def nccl_ranks(args, cluster, folder, world, seconds, environment):
    """Runs gpu_nccl.py. Returns the exit codes, the reports of the ranks, and all that they and NCCL logged."""
    folder.mkdir()
    command = [sys.executable, "-B", str(HERE / "gpu_nccl.py"), "--socket", cluster.socket(), "--group",
               str(folder / "group"), "--world", str(world), "--device", args.device]
    ranks, outputs = [], []
    for rank in range(world):
        outputs.append(open(folder / f"output{rank}", "w+"))
        ranks.append(subprocess.Popen(
            [*command, "--rank", str(rank)], stdout=outputs[-1], stderr=subprocess.STDOUT,
            env={**os.environ, **environment(rank), "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL",
                 "NCCL_DEBUG_FILE": str(folder / f"nccl{rank}")}))
    until = clock() + seconds
    for rank in ranks:
        try:
            rank.wait(max(0.1, until - clock()))
        except subprocess.TimeoutExpired:
            pass
    for rank in ranks:
        rank.kill()
        rank.wait()
    reports, text = [], ""
    for output in outputs:
        output.seek(0)
        lines = output.read().splitlines()
        reports += [json.loads(line) for line in lines if line.startswith('{"calls"')]
        text += "\n".join(lines) + "\n"
        output.close()
    for log in sorted(folder.glob("nccl*")):
        text += log.read_text()
    print(text[-6000:], file=sys.stderr)
    return [rank.returncode for rank in ranks], reports, text


def compare_records(name, codes, reports):
    same = all(not one["only_logged"] and not one["only_recorded"] for one in reports)
    check(name, codes and not any(codes) and len(reports) == len(codes) and same
          and all(one["records"] == one["calls"] > 0 for one in reports),
          f"exit codes {codes}; collectives in NCCL's log, and in the records by kind and bytes: "
          f"{[(one['calls'], one['records'], one['only_logged'], one['only_recorded']) for one in reports]}")


def nccl(args):
    import gpu_nccl

    import holdfast
    if args.device == "cpu":  # a trial: gloo's collectives have no log
        with Servers(64 << 20) as cluster, tempfile.TemporaryDirectory() as folder:
            codes, reports, _ = nccl_ranks(args, cluster, pathlib.Path(folder) / "two", 2, args.seconds - 5,
                                           lambda _: {})
        return check("gpu_nccl_trial", codes == [0, 0] and [one["records"] for one in reports] == [14, 14],
                     f"exit codes {codes}, records {[one['records'] for one in reports]}")
    import torch
    until = clock() + args.seconds - 4
    try:
        plugin = holdfast.plugins.nccl_profiler()
    except holdfast.UnsupportedError:  # the bundle has it, too
        plugin = pathlib.Path(os.environ["HOLDFAST_CUDA_PLUGIN"]).with_name("libnccl-profiler-holdfast.so")
    usual = {"NCCL_PROFILER_PLUGIN": str(plugin)}
    with Servers(64 << 20) as cluster, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        codes, reports, text = nccl_ranks(args, cluster, folder / "one", 1, min(25, until - clock()), lambda _: usual)
        loaded = gpu_nccl.plugin_of(text)
        check("gpu_nccl_plugin", loaded and "Holdfast" in loaded, f"NCCL {torch.cuda.nccl.version()}: "
              f"loaded {loaded}" if loaded else "NCCL's log does not mention that it loaded the plugin")
        check("gpu_nccl_one_rank", codes == [0] and reports, f"exit codes {codes}")
        if reports and not reports[0]["records"]:
            not_here("gpu_nccl_one_rank_records", f"NCCL starts no events for a communicator of one rank: "
                     f"{reports[0]['calls']} collectives logged")
        elif reports:
            compare_records("gpu_nccl_one_rank_records", codes, reports)
        network = {**usual, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket",
                   "NCCL_MAX_NCHANNELS": "2"}
        codes, reports, text = nccl_ranks(args, cluster, folder / "two", 2, min(25, until - clock()), lambda _: network)
        refused = gpu_nccl.REFUSED.search(text)
        if refused is None:
            return compare_records("gpu_nccl_two_ranks_records", codes, reports)
        not_here("gpu_nccl_two_ranks", f"NCCL refuses: {refused[0][:120]}")
        # Ranks of different hosts may have GPUs with the same number. They use the network.
        codes, reports, text = nccl_ranks(args, cluster, folder / "hosts", 2, max(5, until - clock()),
                                          lambda rank: {**network, "NCCL_HOSTID": f"host{rank}"})
        if not reports and not {-signal.SIGSEGV, -signal.SIGABRT} & set(codes):
            return not_here("gpu_nccl_two_hosts_records", f"the ranks ended with {codes}: "
                            f"{next((line for line in text.splitlines() if 'NCCL WARN' in line), 'no answer')[-160:]}")
        compare_records("gpu_nccl_two_hosts_records", codes, reports)


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
    results = {True: "passed", False: "FAILED", None: "skipped"}
    lines = []
    if figures:
        lines += ["| figure | ratio | goal | ours | reference | |", "|---|---:|---|---:|---:|---|"]
        lines += [f"| {one['name']} | {one['ratio']:.3f} | {one['goal']} | {one['ours']:.3f} {one['unit']} | "
                  f"{one['reference']:.3f} {one['unit']} | {one['note']} |" for one in figures]
    if figures and checks:
        lines.append("")
    if checks:
        lines += ["| check | result | |", "|---|---|---|"]
        lines += [f"| {one['name']} | {results[one['passed']]} | {one['note']} |" for one in checks]
    return "\n".join(lines)


def main():
    parts = {function.__name__: function for function in (step, many, kill, modes, torn, fault, nccl, nvml)}
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
    global FILE
    FILE = args.rows
    # `timeout` ends a part with SIGTERM. The table then has what is known.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))
    try:
        parts[args.part](args)
    except Exception as error:
        check(f"gpu_{args.part}", False, f"{type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        print(table(), flush=True)
        print("\n".join(FAILED), file=sys.stderr)
    write_rows()
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
