#!/usr/bin/env python3
"""A small character-level GPT, trained on the text of the GPL: plain, DDP or FSDP2, on CPUs or GPUs.

    python train.py                                                   one process
    torchrun --nproc-per-node 2 train.py --mode ddp                   or --mode fsdp
    holdfast run --job gpt --nnodes 1 --nproc-per-node 2 -- python train.py --mode fsdp

Kill it at any time and start it again, with any number of ranks: it continues where it was.
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import holdfast.torch as hf


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, tokens, length, width, heads, layers):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.token.weight  # tied: saved once

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Text:
    """Random pieces of a text. state_dict() and load_state_dict() make its generator part of the
    checkpoint."""

    def __init__(self, path, length, batch, rank):
        data = open(path, "rb").read()
        self.alphabet = sorted(set(data))
        number = {byte: i for i, byte in enumerate(self.alphabet)}
        self.data = torch.tensor([number[byte] for byte in data])
        self.length, self.batch = length, batch
        self.generator = torch.Generator().manual_seed(1234 + rank)

    def next(self, device):
        starts = torch.randint(len(self.data) - self.length - 1, (self.batch,),
                               generator=self.generator)
        rows = torch.stack([self.data[s:s + self.length + 1] for s in starts]).to(device)
        return rows[:, :-1], rows[:, 1:]

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=["plain", "ddp", "fsdp"], default="plain")
    parser.add_argument("--job", default="nanogpt")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    for name, default in dict(steps=200, batch=8, length=64, width=64, heads=4, layers=2).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def spread(model, mode, device):
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if mode == "fsdp":
        from torch.distributed.fsdp import fully_shard
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def main():
    args = arguments()
    rank, local = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if args.mode != "plain":
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)  # the same weights everywhere
    text = Text(args.text, args.length, args.batch, rank)
    model = GPT(len(text.alphabet), args.length, args.width, args.heads, args.layers).to(device)
    model = spread(model, args.mode, device)
    torch.manual_seed(rank)  # each rank has its own dropout
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(
        optim, lambda step: 0.5 * (1 + math.cos(math.pi * step / args.steps)))

    ckpt = hf.Checkpointer(
        job=args.job, state={"model": model, "optim": optim, "sched": sched, "text": text},
        on_reshape={"text": "drop"})  # another number of ranks draws different pieces
    first = ckpt.restore()  # 0 on a fresh start
    if rank == 0:
        print(f"step {first}: " + (f"restored {ckpt.restored}" if first else "fresh"), flush=True)
    for step in range(first, args.steps):
        begin = time.perf_counter()
        optim.zero_grad()
        loss = model(*text.next(device))
        loss.backward()
        optim.step()  # waits for the copy of the last save, if needed
        sched.step()
        ckpt.save(step, wait_for_slot=10 if step == args.steps - 1 else 0)
        if rank == 0 and (step % 20 == 0 or step == args.steps - 1):
            print(f"step {step}: loss {loss.item():.4f}, "
                  f"{1000 * (time.perf_counter() - begin):.0f} ms", flush=True)
    if args.steps > first:
        ckpt.wait(args.steps - 1)
    ckpt.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
