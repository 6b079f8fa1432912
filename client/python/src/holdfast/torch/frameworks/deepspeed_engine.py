"""DeepSpeed's checkpoints as versions of a job."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo, CheckpointEngine)

from ...client import Tier
from ..plan import gather, talking
from .trees import Pointer, TreeStore, moved

__all__ = ["DeepSpeedEngine"]


class DeepSpeedEngine(CheckpointEngine):
    """A checkpoint engine for DeepSpeed: all files of a tag are one version of a job.

        engine, *_ = deepspeed.initialize(...)
        engine.checkpoint_engine = hf.DeepSpeedEngine(job="my-run", allow_pickle=True)
        engine.load_checkpoint("checkpoints")
        engine.save_checkpoint("checkpoints")

    The version's step is the number that the tag ends with, or the next free one. Where DeepSpeed
    expects its files there are small ones that say which version they are in; they are written when
    the version is committed, and DeepSpeed's `latest` after them. `save_16bit_model` writes the
    file that it promises, as torch does.

    All ranks make theirs together, after `deepspeed.initialize`.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same on all ranks, and at each start.
        tier: where a version is safe before `save_checkpoint` returns. On disk it stays as long
            as retention keeps it, as a file would; in memory, which is sooner, the newest is kept
            for sure.
        timeout: seconds, of a save and of a load.
        allow_pickle: values that have no JSON form are pickled, and pickles in checkpoints loaded.
            DeepSpeed's optimizers have such values: loss scalers.
        client_options: further arguments of `holdfast.Client`.
    """

    def __init__(self, job: str, *, tier: Tier = Tier.DISK, timeout: float = 120.0,
                 allow_pickle: bool = False, **client_options: Any) -> None:
        super().__init__(None)
        self.name = "holdfast"
        initialised = dist.is_initialized()
        self._store = TreeStore(
            job, rank=dist.get_rank() if initialised else 0,
            world=dist.get_world_size() if initialised else 1, run_id=None, tier=tier,
            timeout=timeout, allow_pickle=allow_pickle, keep=False, **client_options)
        self._info: CheckpointCommitInfo | None = None
        self._pending: dict[str, Any] = {}

    def create(self, info: CheckpointCommitInfo) -> None:
        self._info, self._pending = info, {}

    def save(self, state_dict: Any, path: str) -> None:
        """Remembers what is to be saved: the tensors stay as they are until `commit`, which
        follows."""
        folder = os.path.dirname(os.path.abspath(path))
        if self._info is not None and folder == os.path.abspath(self._info.save_dir):
            # Not in the tag's folder: a file for others.
            torch.save(state_dict, path)
        else:
            self._pending[path] = state_dict

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """On all ranks; returns when the version is committed.

        Raises:
            HoldfastError: it is not; `latest` is what it was.
        """
        pending, self._pending = self._pending, {}
        if not any(self._of_all(len(pending))):
            return True
        names = {path: os.path.relpath(path, info.save_dir) for path in pending}
        number = re.search(r"\d+$", str(info.tag))
        version = self._store.save({names[path]: tree for path, tree in pending.items()},
                                   int(number[0]) if number else 0)
        for path, name in names.items():
            Pointer(self._store.job, *version, self._store.rank, name).write(path)
        self._of_all(True)  # `latest` comes after everybody's
        return True

    def _of_all(self, mine: Any) -> list[Any]:
        return gather(mine) if talking(self._store.world) else [mine]

    def load(self, path: str, map_location: Any = None) -> Any:
        """Any rank's, on any rank.

        Raises:
            FileNotFoundError; NotFoundError: the version is kept no more.
        """
        return moved(self._store.load(Pointer.read(path)), map_location)

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        return False

    def set_commit_info(self, info: CheckpointCommitInfo) -> None:
        self._info = info

    def get_commit_info(self) -> CheckpointCommitInfo | None:
        return None  # nothing is committed later

    def cleanup(self) -> None:
        self._store.close()

    def preserves_storage_sharing(self) -> bool:
        return False  # each tensor is saved by its own elements: there is nothing to clone for
