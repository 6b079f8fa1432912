"""Reuse of a run ID: the job continues if its launcher restarts it with the same run ID."""

import os
import subprocess
import sys

WORKER = """
import os, pathlib, signal, sys
import torch
import torch.distributed as dist
import holdfast.torch as hf

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
checkpointer = hf.Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer})
first = checkpointer.restore()
print(f"rank {dist.get_rank()} begins at {first}", flush=True)
again = pathlib.Path(sys.argv[2])
for step in range(first, 13):
    optimizer.zero_grad()
    model(torch.full((2, 64), float(step))).sum().backward()
    optimizer.step()
    checkpointer.save(step, wait_for_slot=10)
    checkpointer.wait(step)
    if step == 6 and dist.get_rank() == 1 and not again.exists():
        again.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {dist.get_rank()} ends", flush=True)
dist.barrier()
checkpointer.close()
"""


def launch(script, folder, job, restarts):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", str(restarts), str(script), job, str(folder / "killed")],
        capture_output=True, text=True, timeout=240, check=False,
        # Without this, gloo finds addresses of the first attempt in the store and connects to ended processes.
        env={**os.environ, "HOLDFAST_RUN_ID": "slurm-4711", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def test_the_job_continues_after_restarts_of_torchrun_and_a_requeue(cluster, job, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = launch(script, tmp_path, job, restarts=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("begins at 0") == 2, done.stdout
    assert done.stdout.count("begins at 7") == 2, done.stdout
    assert done.stdout.count(" ends") == 2, done.stdout

    # The queue restarts the complete job with the same run ID.
    again = launch(script, tmp_path, job, restarts=0)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("begins at 13") == 2, again.stdout
