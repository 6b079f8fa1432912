"""Trainings in other people's frameworks, for test_frameworks.py: run in processes of their own."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch import nn

import holdfast.torch as hf


class Data(torch.utils.data.Dataset):
    def __init__(self, rows=24):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.rand(rows, 8, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[i].sum()}


class Model(nn.Module):
    """Its head is tied, its weights large enough to be saved as tensors."""

    def __init__(self, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(8, 3000), nn.Linear(3000, 1)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, labels=None):
        out = self.down(self.drop(torch.relu(self.up(x)))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(out, labels), "out": out}


def everything(model, optimizer, scheduler):
    """What must be equal at the end, to the bit."""
    return {"model": {name: value.clone() for name, value in model.state_dict().items()},
            "optim": optimizer.state_dict(), "sched": scheduler.state_dict()["last_epoch"],
            "random": torch.get_rng_state()}


# ------------------------------------------------------------------------------- Hugging Face


def train_hf(job, folder, kill_after, every=1, epochs=3):
    """Kills itself when that step is committed; 0: goes on to the end."""
    import transformers
    from transformers import Trainer, TrainingArguments
    transformers.logging.set_verbosity_error()
    callback = hf.TrainerCallback(job=job, every=every)
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


def train_hf_untold(job, folder):
    """A Trainer that was not told to go on where the job is."""
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
