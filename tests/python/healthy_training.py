"""The example's training, disturbed as real training is and healthy: data stalls, evaluations, files
written by rank 0, garbage collection.

    healthy_training.py EXAMPLE [arguments of the example]
"""

import gc
import importlib.util
import os
import pathlib
import random
import sys
import tempfile
import time

import holdfast.torch as hf
import torch
import torch.distributed as dist


def load(path):
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def disturbed(example):
    class Disturbed(example.Text):
        """The example calls next() once in each step."""

        def __init__(self, *arguments):
            super().__init__(*arguments)
            hf.record_collectives()
            self.steps = 0
            self.random = random.Random(dist.get_rank())
            self.evaluated = example.GPT(len(self.alphabet), self.length, 64, 4, 2)
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hf-rank"))

        def next(self, device):
            self.steps += 1
            if self.random.random() < 0.02:
                time.sleep(self.random.uniform(0.05, 1.5))  # the storage of the data is slow
            if self.random.random() < 0.03:
                list(range(self.random.randrange(1_000_000)))
                gc.collect()
            if self.steps % 150 == 0:
                self.evaluate(device, marked=self.steps % 300 == 0)
            if self.steps % 100 == 0 and dist.get_rank() == 0:
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
                    self.evaluated(*super().next(device))

        def write(self):
            """Rank 0 writes a file. The other ranks wait for rank 0 in the next step."""
            path = self.folder / "model.pt"
            for _ in range(3):
                torch.save([self.evaluated.state_dict(), torch.zeros(2 << 20)], path)
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            path.unlink()

    return Disturbed


def main():
    example = load(sys.argv.pop(1))
    torch.set_num_threads(1)
    example.Text = disturbed(example)
    example.main()


if __name__ == "__main__":
    main()
