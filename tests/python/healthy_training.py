"""The example's training, disturbed as real training is and healthy: data stalls, evaluations, files
written by rank 0, recompilation, garbage collection.

    healthy_training.py EXAMPLE --mode ddp|fsdp|tp|pipeline [other arguments of the example]

SIGUSR1 makes the fault of a rank that computes forever. With HOLDFAST_TEST_PIDS, each rank writes its
process ID to a file of that folder.
"""

import argparse
import gc
import importlib.util
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import holdfast.torch as hf
import parallel
import torch
import torch.distributed as dist

EVALUATE, WRITE, RECOMPILE = 100, 60, 80  # steps between two of each


def load(path):
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def disturbed(example, mode, recompiles):
    class Disturbed(example.Text):
        """The example calls next() once in each step."""

        def __init__(self, path, length, batch, rank):
            super().__init__(path, length, batch, parallel.data_rank(mode))
            hf.record_collectives()
            self.steps = 0
            self.random = random.Random(rank)
            self.held_out = example.Text(path, length, batch, 1000 + rank)
            self.evaluated = example.GPT(len(self.alphabet), length, 64, 4, 2)
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hf-rank"))

        def next(self, device):
            self.steps += 1
            if self.random.random() < 0.02:
                time.sleep(self.random.uniform(0.05, 1.5))  # the storage of the data is slow
            if self.random.random() < 0.03:
                list(range(self.random.randrange(1_000_000)))
                gc.collect()
            if self.steps % EVALUATE == 25:
                self.evaluate(device, marked=self.steps // EVALUATE % 2 == 1)
            if recompiles and self.steps % RECOMPILE == 15:
                self.recompile(device)
            if self.steps % WRITE == 5 and dist.get_rank() == 0:
                self.write()
            return super().next(device)

        def evaluate(self, device, marked):
            """Takes a few seconds, and longer on some ranks. Every other evaluation is not marked."""
            if marked:
                with hf.phase(hf.Phase.EVALUATION):
                    return self.evaluate(device, marked=False)
            end = time.monotonic() + self.random.uniform(1, 4)
            with torch.no_grad():
                while time.monotonic() < end:
                    self.evaluated(*self.held_out.next(device))

        def recompile(self, device):
            """Compiles for one length of sequences, and again for another one."""
            torch.compiler.reset()
            compiled = torch.compile(self.evaluated, backend="aot_eager", dynamic=False)
            tokens, targets = self.held_out.next(device)
            for length in self.random.sample(range(2, self.length + 1), 2):
                compiled(tokens[:, :length], targets[:, :length]).backward()

        def write(self):
            """Rank 0 writes a file. The other ranks wait for rank 0 in the next step."""
            path = self.folder / "model.pt"
            for _ in range(3):
                torch.save([self.evaluated.state_dict(), torch.zeros(2 << 20)], path)
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            path.unlink()

    return Disturbed


def compute_forever(*_):
    while True:
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("example")
    parser.add_argument("--mode", choices=["ddp", "fsdp", "tp", "pipeline"], required=True)
    parser.add_argument("--no-recompilation", action="store_true")
    own, rest = parser.parse_known_args()
    signal.signal(signal.SIGUSR1, compute_forever)
    if pids := os.environ.get("HOLDFAST_TEST_PIDS"):
        pathlib.Path(pids, f"rank-{os.environ['RANK']}").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    example = load(own.example)
    original = load(own.example)
    example.Text = disturbed(original, own.mode, not own.no_recompilation)
    example.spread = lambda model, *_: parallel.spread(model, own.mode, original)
    sys.argv[1:] = [*rest, "--mode", "ddp"]  # any mode that is distributed
    example.main()


if __name__ == "__main__":
    main()
