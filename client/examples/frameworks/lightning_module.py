#!/usr/bin/env python3
"""Saves Lightning's checkpoints in Holdfast. Kill it and start it again: it continues with the last
epoch.

    pip install lightning
    python lightning_module.py
"""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import holdfast.torch as hf


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(),
                                       torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x).squeeze(-1), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    x = torch.rand(1000, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, x.sum(1))
    trainer = lightning.Trainer(
        max_epochs=20, logger=False, default_root_dir="/tmp/regression",
        plugins=[hf.CheckpointIO(job="regression")],
        callbacks=[ModelCheckpoint(dirpath="/tmp/regression", save_last=True),
                   hf.RandomStatesCallback()])
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=50), ckpt_path="last")


if __name__ == "__main__":
    main()
