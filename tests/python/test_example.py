"""The example program with each launcher. Each launch continues where the previous one stopped."""

import os
import pathlib
import re
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).parents[2] / "client/examples/nanogpt/train.py"
SMALL = ["--batch", "2", "--length", "16", "--width", "16", "--heads", "2", "--layers", "1"]


def steps_of(output):
    first = re.search(r"step (\d+): (fresh|restored)", output)
    last = re.findall(r"step (\d+): loss ([0-9.]+)", output)[-1]
    return int(first[1]), first[2], int(last[0])


def test_three_launchers_of_three_worlds(cluster, job, tmp_path):
    text = tmp_path / "text"
    text.write_text("Everyone is permitted to copy and distribute verbatim copies.\n" * 40)
    common = [*SMALL, "--job", job, "--text", str(text)]

    done = cluster.cli("run", "--job", job, "--nnodes", "1", "--nproc-per-node", "2", "--",
                       sys.executable, str(EXAMPLE), "--mode", "fsdp", "--steps", "10", *common,
                       timeout=120)
    logs = "".join(path.read_text() for path in cluster.root.glob("n0/log/**/rank-0.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert steps_of(logs + done.stdout) == (0, "fresh", 9)

    def launch(*command):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True,
                              timeout=120, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return steps_of(done.stdout)

    assert launch("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                  str(EXAMPLE), "--mode", "ddp", "--steps", "20", *common) == (10, "restored", 19)
    assert launch(str(EXAMPLE), "--steps", "30", *common) == (20, "restored", 29)
