#!/usr/bin/env python3
"""Saves DeepSpeed's checkpoints in Holdfast. Kill it and start it again: it continues where it was.

    pip install deepspeed
    holdfast run --job zero --nnodes 1 --nproc-per-node 2 -- python deepspeed_zero.py
"""

import deepspeed
import torch

import holdfast.torch as hf

CONFIG = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2},
          "bf16": {"enabled": True},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}


def main():
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=CONFIG)
    # DeepSpeed's loss scalers are objects, which can only be saved as pickles.
    engine.checkpoint_engine = hf.DeepSpeedEngine(job="zero", allow_pickle=True)
    engine.load_checkpoint("/tmp/zero")
    while engine.global_steps < 100:
        generator = torch.Generator().manual_seed(1000 * engine.global_rank + engine.global_steps)
        x = torch.rand(8, 8, generator=generator).to(engine.device, torch.bfloat16)
        loss = torch.nn.functional.mse_loss(engine(x).squeeze(-1), x.sum(1))
        engine.backward(loss)
        engine.step()
        if engine.global_steps % 10 == 0:
            engine.save_checkpoint("/tmp/zero")
            if engine.global_rank == 0:
                print(f"step {engine.global_steps}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
