"""Runs a function in several processes of one torch.distributed group, as torchrun does, but with a
short start-up: the processes are forked from one that has only imported all packages."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import tempfile
import time
import traceback

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["warm"])
KILLED = "killed"


def _main(function, rank, world, folder, environment, arguments):
    os.environ.update(environment)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    answer = folder / f"answer-{rank}"
    try:
        if world > 1:
            dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                                    world_size=world)
        result = function(*arguments)
        torch.save(result, answer.with_suffix(".part"))
        answer.with_suffix(".part").rename(answer)
        if world > 1:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        # Written before the other ranks notice the loss of this one.
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise


def run(world, function, *arguments, environment=(), timeout=300, expect=None):
    """Runs `function(*arguments)` on each rank. Returns the results by rank. With `expect=KILLED` all
    ranks must end by SIGKILL."""
    import torch
    with tempfile.TemporaryDirectory(prefix="hf-ranks") as name:
        folder = pathlib.Path(name)
        copied = {key: value for key, value in os.environ.items() if key.startswith("HOLDFAST_")}
        processes = [_context.Process(target=_main, args=(
            function, rank, world, folder, {**copied, **dict(environment)}, arguments))
            for rank in range(world)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + timeout
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in late:
            os.kill(processes[rank].pid, signal.SIGKILL)
            processes[rank].join()
        errors = [path.read_text() for path in sorted(folder.glob("error-*"))]
        assert not late, f"ranks {late} did not end:\n" + "\n".join(errors)
        codes = [process.exitcode for process in processes]
        if expect == KILLED:
            assert codes == [-signal.SIGKILL] * world, "\n".join(errors)
            return None
        assert not errors and codes == [0] * world, f"{codes}\n" + "\n".join(errors)
        return [torch.load(folder / f"answer-{rank}", weights_only=False) for rank in range(world)]
