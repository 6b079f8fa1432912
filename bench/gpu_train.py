#!/usr/bin/env python3
"""A deterministic training that can be killed and started again. bench/gpu_parts.py runs it and compares its log.

The log has one JSON object per line: the step that the process began with, then step and loss (exact, as hex), and at
the end the digest of parameters and optimizer."""

import argparse
import contextlib
import hashlib
import json
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from nanogpt import GPT  # noqa: E402

import holdfast.torch as hf  # noqa: E402

TOKENS, LENGTH, BATCH = 256, 64, 8


def digest(model, optim):
    """Returns the SHA-256 over every tensor of the state, in a fixed order."""
    found = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)

    add(model.state_dict())
    add(optim.state_dict()["state"])
    return found.hexdigest()


def batch_of(step, device):
    """The same tokens for the same step in every run."""
    drawn = torch.randint(TOKENS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    drawn = drawn.to(device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


class Step:
    """One training step: eager, or the replay of a CUDA graph."""

    def __init__(self, model, optim, device, graph, guard):
        self.model, self.optim, self.guard, self.graph = model, optim, guard, None
        self.tokens, self.targets = batch_of(0, device)
        if graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.work()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.work()

    def work(self):
        self.optim.zero_grad(set_to_none=False)
        self.loss = self.model(self.tokens, self.targets)
        self.loss.backward()
        self.optim.step()

    def run(self, step, device):
        tokens, targets = batch_of(step, device)
        self.tokens.copy_(tokens)
        self.targets.copy_(targets)
        if self.graph is None:
            self.work()
        else:
            self.guard()  # a replay has no call before which the copy could be awaited
            self.graph.replay()
        return self.loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-at", type=int, help="save only this step, and log the digest at it")
    parser.add_argument("--restore-only", action="store_true", help="log the digest of what is restored")
    parser.add_argument("--fault-at", type=int, help="access memory beyond a tensor after this step")
    parser.add_argument("--mode", choices=("plain", "stream", "graph", "compile"), default="plain")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    log = open(args.log, "a", buffering=1)

    def write(**record):
        log.write(json.dumps(record) + "\n")

    model = GPT(TOKENS, LENGTH, args.width, 4, 4).to(device)
    graph = args.mode == "graph"
    if graph:
        model.eval()  # a graph repeats the random numbers of dropout unless its generator is registered
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=graph)
    trained = torch.compile(model) if args.mode == "compile" else model
    with contextlib.ExitStack() as stack:
        if args.mode == "stream":
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream()))
        ckpt = stack.enter_context(hf.Checkpointer(args.job, {"model": model, "optim": optim},
                                                   socket_path=args.socket))
        first = ckpt.restore()
        write(first=first)
        if args.restore_only:
            return write(digest=digest(model, optim))
        step_of = Step(trained, optim, device, graph, ckpt.guard)
        for step in range(first, args.steps):
            loss = step_of.run(step, device)
            if args.save_at is None:
                ckpt.save(step)
            elif step == args.save_at:
                write(at=step, digest=digest(model, optim))
                assert ckpt.save(step)
            write(step=step, loss=loss.item().hex())
            if step == args.fault_at:
                ckpt.wait(step, hf.Tier.MEMORY, 60)
                write(at=step, digest=digest(model, optim))
                step_of.run(step + 1, device)
                ckpt.save(step + 1)
                # The kernel fails while the copy may still run; the next call reports the error.
                torch.zeros(4, device=device)[torch.tensor([1 << 40], device=device)].sum().item()
        saved = args.steps - 1 if args.save_at is None else args.save_at
        ckpt.wait(saved, hf.Tier.MEMORY, 60)
        write(end=True, digest=digest(model, optim))


if __name__ == "__main__":
    sys.exit(main())
