#!/usr/bin/env python3
"""A deterministic training that can be killed and started again. bench/gpu_parts.py runs it and compares its log.

The log has one JSON object per line: the step that the process began with, then step and loss (exact, as hex), and at
the end the digest of parameters and optimizer."""

import argparse
import contextlib
import ctypes
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


class Memory:
    """Host and device memory in one address range (unified memory), for torch.as_tensor."""

    def __init__(self, elements):
        driver = ctypes.CDLL("libcuda.so.1")
        address = ctypes.c_uint64()
        attach_global = 1
        code = driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(4 * elements), attach_global)
        if code != 0:
            raise RuntimeError(f"cuMemAllocManaged: error {code}")
        self.__cuda_array_interface__ = {"shape": (elements,), "typestr": "<f4", "data": (address.value, False),
                                         "version": 3}


ILLEGAL = """extern "C" __global__ void illegal(int legal, int* memory) {
    *(volatile int*)(legal ? memory : (int*)0x10ULL) = 1;
}"""


def faulty_kernel(device):
    """Returns a function that starts a kernel that fails on the device, and the name of the fault."""
    try:
        kernel = torch.cuda._compile_kernel(ILLEGAL, "illegal")
        memory = torch.zeros(4, dtype=torch.int32, device=device)

        def launch(legal=0):
            kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[legal, memory])

        # The first launch loads the kernel, which may wait for copies that are queued.
        launch(legal=1)
        torch.cuda.synchronize()
        return launch, "illegal access"
    except Exception as error:  # an older PyTorch, or no NVRTC
        print(f"no kernel of our own: {error}", file=sys.stderr)
    data, index = torch.zeros(4, device=device), torch.tensor([1 << 40], device=device)
    return lambda: data[index], "assertion"


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
    parser.add_argument("--fault-at", type=int, help="fail on the device while the save of this step is copied")
    parser.add_argument("--large", type=int, default=0, help="bytes of a further tensor, whose copy takes a while")
    parser.add_argument("--mode", choices=("plain", "stream", "per_thread", "graph", "compile", "managed"),
                        default="plain")
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
    more = {}
    if args.mode == "managed":
        more["managed"] = torch.as_tensor(Memory(4 << 20), device=device)
    if args.large:
        more["large"] = torch.zeros(args.large // 4, device=device)

    def fill(step):
        """Sets the further tensors to the number of the step. The caller has called the guard."""
        for tensor in more.values():
            tensor.fill_(step)

    def state():
        """Returns what identifies the bytes of the state."""
        ends = {name: [tensor.min().item(), tensor.max().item()] for name, tensor in more.items()}
        return {"digest": digest(model, optim), "more": ends}

    with contextlib.ExitStack() as stack:
        if args.mode == "stream":
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream()))
        elif args.mode == "per_thread":  # cudaStreamPerThread
            stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(2, device=device)))
        ckpt = stack.enter_context(hf.Checkpointer(
            args.job, {"model": model, "optim": optim, **({"more": more} if more else {})}, socket_path=args.socket))
        first = ckpt.restore()
        write(first=first)
        if args.restore_only:
            return write(**state())
        fault = faulty_kernel(device) if args.fault_at is not None else None
        step_of = Step(trained, optim, device, graph, ckpt.guard)
        for step in range(first, args.steps):
            loss = step_of.run(step, device)
            ckpt.guard()
            fill(step)
            if step == args.fault_at:
                write(at=step, **state())
                return fail(ckpt, step, fault, write)
            if args.save_at is None:
                ckpt.save(step)
            elif step == args.save_at:
                write(at=step, **state())
                assert ckpt.save(step)
            write(step=step, loss=loss.item().hex())
            if args.fault_at is not None:
                ckpt.wait(step, hf.Tier.MEMORY, 60)
                write(at=step, **state())
        saved = args.steps - 1 if args.save_at is None else args.save_at
        ckpt.wait(saved, hf.Tier.MEMORY, 60)
        write(end=True, **state())


def fail(ckpt, step, fault, write):
    """Saves, and fails on the device at once, while the save is copied. Logs the error of each further call."""
    launch, name = fault
    torch.cuda.synchronize()
    accepted = ckpt.save(step)
    calls = {"launch": launch, "synchronize": torch.cuda.synchronize, "guard": ckpt.guard,
             "wait": lambda: ckpt.wait(step, hf.Tier.MEMORY, 20), "close": ckpt.close}
    errors = {}
    for call, function in calls.items():
        try:
            function()
        except Exception as error:
            errors[call] = f"{type(error).__name__}: {error}"[:200]
    write(fault=name, accepted=accepted, errors=errors)
    sys.stderr.flush()
    # Destructors of PyTorch may abort a process whose device has failed. The training's own end is not under test.
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
