"""Saves the random generators of all ranks with Lightning's checkpoints."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch.distributed as dist

if "lightning" not in sys.modules and "pytorch_lightning" in sys.modules:
    from pytorch_lightning import Callback as _Callback
else:
    from lightning.pytorch import Callback as _Callback

from .. import random_state, values

__all__ = ["RandomStatesCallback"]

_logger = logging.getLogger("holdfast")


class RandomStatesCallback(_Callback):
    """Adds the states of the generators of all ranks to Lightning's checkpoints, which have none. A
    resumed training with dropout or a shuffling loader then equals an uninterrupted one:

        trainer = Trainer(plugins=[hf.CheckpointIO(job="my-run")],
                          callbacks=[hf.RandomStatesCallback(), ModelCheckpoint(save_last=True)])

    This holds for checkpoints at the end of an epoch. On one rank it also holds for those within an
    epoch, if the loader continues at the same batch, as torchdata's StatefulDataLoader does.
    With another number of ranks the generators stay unchanged, and the log has a warning.
    """

    def __init__(self) -> None:
        self._within_epoch = False
        self._again: str | None = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._within_epoch = not trainer.is_last_batch

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks for each checkpoint."""
        own = random_state.capture_json().decode()
        ranks: list[Any] = [own] * _world()
        if len(ranks) > 1:
            dist.all_gather_object(ranks, own)
        return {"ranks": ranks, "within_epoch": self._within_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the generators, before the loaders begin to iterate."""
        ranks = state_dict["ranks"]
        if len(ranks) != _world():
            _logger.warning("the checkpoint has the random generators of %d ranks, and this training "
                            "has %d: the generators stay unchanged", len(ranks), _world())
            return
        own = ranks[dist.get_rank() if len(ranks) > 1 else 0]
        _restore(own)
        self._again = own if state_dict["within_epoch"] else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # A loader that begins to iterate draws a seed. A checkpoint within an epoch is made after that.
        if self._again is not None:
            _restore(self._again)
            self._again = None


def _restore(encoded: str) -> None:
    random_state.restore(values.decode(values.loads(encoded.encode()), "random"))


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
