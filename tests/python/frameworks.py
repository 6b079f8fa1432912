"""Trainings in other frameworks, for test_frameworks.py. They run in separate processes."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch import nn

import holdfast.torch as hf


def launched():
    """Sets up the environment as with or without torchrun. Returns the world size."""
    if dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", NODE_RANK="0",
                          LOCAL_WORLD_SIZE=str(dist.get_world_size()))
        return dist.get_world_size()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    return 1


class Data(torch.utils.data.Dataset):
    def __init__(self, rows=24):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.rand(rows, 8, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[i].sum()}


class Model(nn.Module):
    """A model whose weights are large enough to be saved as tensors."""

    def __init__(self, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(8, 3000), nn.Linear(3000, 1)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, labels=None):
        out = self.down(self.drop(torch.relu(self.up(x)))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(out, labels), "out": out}


def everything(model, optimizer, scheduler):
    """The state that must be equal at the end, bit for bit."""
    return {"model": {name: value.clone() for name, value in model.state_dict().items()},
            "optim": optimizer.state_dict(), "sched": scheduler.state_dict()["last_epoch"],
            "random": torch.get_rng_state()}


# ------------------------------------------------------------------------------- Hugging Face


def train_hf(job, folder, kill_after, every=1, epochs=3):
    """Trains, and kills itself when step `kill_after` is committed. 0: trains to the end."""
    launched()
    import transformers
    from transformers import Trainer, TrainingArguments
    transformers.logging.set_verbosity_error()
    # Long timeouts, so that no step is skipped on a busy machine.
    callback = hf.TrainerCallback(job=job, every=every, wait_for_slot=60, agent_timeout=60)
    began = []

    class Killer(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            began.append(state.global_step)

        def on_step_begin(self, args, state, control, **kwargs):
            if kill_after and state.global_step == kill_after:
                callback.checkpointer.wait(kill_after - kill_after % every)
                os.kill(os.getpid(), signal.SIGKILL)

    args = TrainingArguments(
        output_dir=folder, use_cpu=True, per_device_train_batch_size=2, num_train_epochs=epochs,
        gradient_accumulation_steps=2, logging_steps=2, eval_strategy="steps", eval_steps=3,
        save_strategy="no", report_to=[], disable_tqdm=True, seed=5, learning_rate=1e-3,
        lr_scheduler_type="cosine", remove_unused_columns=False)
    trainer = Trainer(model=Model(), args=args, train_dataset=Data(), eval_dataset=Data(4),
                      callbacks=[callback, Killer()])
    trainer.train(resume_from_checkpoint=callback.resume(trainer))
    optimizer = trainer.optimizer.optimizer
    return began[0], trainer.state.global_step, everything(
        trainer.model, optimizer, trainer.lr_scheduler), trainer.state.log_history


def train_hf_without_resume(job, folder):
    """Trains without resuming the job. Returns the error."""
    launched()
    import transformers
    from transformers import Trainer, TrainingArguments
    transformers.logging.set_verbosity_error()
    args = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True,
                             save_strategy="no", max_steps=1, remove_unused_columns=False)
    trainer = Trainer(model=Model(), args=args, train_dataset=Data(),
                      callbacks=[hf.TrainerCallback(job=job)])
    try:
        trainer.train()
    except hf.HoldfastError as error:
        return str(error)


# ---------------------------------------------------------------------------------- Lightning


def train_lightning(job, folder, ckpt_path, kill_after, epochs=4, random=None):
    """Trains, and kills itself in epoch `kill_after`. `random`: with dropout and batches in random
    order, and checkpoints at the end of an "epoch" or within it, at a "step"."""
    import logging
    import warnings

    import lightning
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    world = launched()
    if ckpt_path == "newest":
        ckpt_path = hf.CheckpointIO.NEWEST

    class Module(lightning.LightningModule):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters()
            self.net = Model()
            if random is None:
                self.net.drop.p = 0.0  # Lightning does not save the generators
            self.net.tied = self.net.up  # two names, one tensor

        def training_step(self, batch, _):
            loss = self.net(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]

    killed_at = 3 if random == "step" else 1  # after the checkpoint of the third batch

    class Watcher(Callback):
        def on_train_start(self, trainer, module):
            self.began = trainer.global_step

        def on_train_batch_start(self, trainer, module, batch, index):
            # Within an epoch. Lightning itself resumes at the beginning of an epoch.
            if trainer.current_epoch + 1 == kill_after and index == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

    watcher = Watcher()
    when = {"every_n_train_steps": 3} if random == "step" else {"save_on_train_epoch_end": True}
    loader_class = torch.utils.data.DataLoader
    if random == "step":
        from torchdata.stateful_dataloader import StatefulDataLoader as loader_class
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
        max_epochs=epochs, logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, plugins=[hf.CheckpointIO(job=job)],
        callbacks=[watcher, ModelCheckpoint(dirpath=folder, save_last=True, filename="{step}", **when),
                   *([hf.RandomStatesCallback()] if random else [])])
    module = Module(width=8)
    loader = loader_class(Data(8 * world if random else 8), batch_size=2, shuffle=random is not None)
    torch.manual_seed(11 + trainer.global_rank)
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return watcher.began, everything(module, trainer.optimizers[0],
                                     trainer.lr_scheduler_configs[0].scheduler)


# ----------------------------------------------------------------------------------- torchdata


def train_with_loader(job, kill_after, steps=6):
    """Trains with batches in random order from spawned worker processes."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    torch.manual_seed(0)
    loader = StatefulDataLoader(Data(), batch_size=2, shuffle=True, num_workers=2,
                                multiprocessing_context="spawn")
    model = Model()
    model.drop.p = 0.0  # a new iteration draws a seed for the workers after the restore
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    with hf.Checkpointer(job, {"model": model, "optim": optimizer, "loader": loader}) as ckpt:
        began = ckpt.restore()
        for step, batch in zip(range(began, steps), loader):
            seen.append(batch["x"].clone())
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            ckpt.save(step, wait_for_slot=60)
            if step + 1 == kill_after:
                ckpt.wait(step, timeout=60)
                os.kill(os.getpid(), signal.SIGKILL)
    return began, seen, {name: value.clone() for name, value in model.state_dict().items()}


# ---------------------------------------------------------------------------------- DeepSpeed


def train_deepspeed(job, folder, stage, kill_after, steps=6):
    os.environ["DS_ACCELERATOR"] = "cpu"
    world = launched()
    if world == 1:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT="0")
    import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled here
    model = Model()
    model.drop.p = 0.0  # DeepSpeed does not save the generators
    engine, _, _, scheduler = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), dist_init_required=False, config={
            "train_micro_batch_size_per_gpu": 2, "zero_optimization": {
                "stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "bf16": {"enabled": stage > 0},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}})
    engine.checkpoint_engine = hf.DeepSpeedEngine(job=job, allow_pickle=True)
    engine.load_checkpoint(folder)
    began = engine.global_steps
    data = Data()
    for step in range(began, steps):
        rows = [data[(2 * (world * step + engine.global_rank) + i) % len(data)] for i in range(2)]
        batch = {key: torch.stack([row[key] for row in rows]).to(model.up.weight.dtype)
                 for key in rows[0]}
        engine.backward(engine(**batch)["loss"])
        engine.step()
        engine.save_checkpoint(folder)
        if step + 1 == kill_after:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    engine.save_16bit_model(folder)
    if stage < 3:
        return began, {name: value.clone() for name, value in engine.module.state_dict().items()}, []
    # A rank has only a part of each weight, and of its optimizer state in full precision.
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    parts = [found.clone() for parameter in engine.module.parameters() for found in (
        safe_get_full_fp32_param(parameter), safe_get_full_optimizer_state(parameter, "exp_avg"),
        safe_get_full_optimizer_state(parameter, "exp_avg_sq"))]
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        weights = {name: value.detach().clone() for name, value in engine.module.named_parameters()}
    assert all(value.numel() > 0 for value in weights.values())
    return began, weights, parts
