"""Saves DeepSpeed's checkpoints as versions of a job."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo, CheckpointEngine)

from ...client import Tier
from ..plan import can_communicate, gather
from .trees import Pointer, TreeStore, moved

__all__ = ["DeepSpeedEngine"]


class DeepSpeedEngine(CheckpointEngine):
    """A checkpoint engine for DeepSpeed: all files of a tag are one version of a job.

        engine, *_ = deepspeed.initialize(...)
        engine.checkpoint_engine = hf.DeepSpeedEngine(job="my-run", allow_pickle=True)
        engine.load_checkpoint("checkpoints")
        engine.save_checkpoint("checkpoints")

    The version's step is the number at the end of the tag, or the next free one. In place of
    DeepSpeed's files there are small pointer files that name the version. They are written when the
    version is committed, and DeepSpeed's `latest` after them. `save_16bit_model` writes a regular
    file with torch.

    All ranks create their engine together, after `deepspeed.initialize`.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same on all ranks and at each start.
        tier: where a version is committed before `save_checkpoint` returns. On disk, it stays as
            long as retention keeps it. Memory is faster, and only the newest version is sure to
            be kept there.
        timeout: seconds for a save, and for a load.
        allow_pickle: pickle values that have no JSON form, and load pickles from checkpoints.
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
        """Records the tree for `commit`, which saves it. The tensors must not change until then."""
        folder = os.path.dirname(os.path.abspath(path))
        if self._info is not None and folder == os.path.abspath(self._info.save_dir):
            # A file outside of the tag's folder is for other programs.
            torch.save(state_dict, path)
        else:
            self._pending[path] = state_dict

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Saves the recorded trees. All ranks call this. Returns when the version is committed.

        Raises:
            HoldfastError: the version is not committed; `latest` is unchanged.
        """
        pending, self._pending = self._pending, {}
        if not any(self._gathered(len(pending))):
            return True
        names = {path: os.path.relpath(path, info.save_dir) for path in pending}
        number = re.search(r"\d+$", str(info.tag))
        version = self._store.save({names[path]: tree for path, tree in pending.items()},
                                   int(number[0]) if number else 0)
        for path, name in names.items():
            Pointer(self._store.job, *version, self._store.rank, name).write(path)
        self._gathered(True)  # `latest` is written after the pointers of all ranks
        return True

    def _gathered(self, mine: Any) -> list[Any]:
        return gather(mine) if can_communicate(self._store.world) else [mine]

    def load(self, path: str, map_location: Any = None) -> Any:
        """Loads the tree of any rank, on any rank.

        Raises:
            FileNotFoundError: there is no pointer file at `path`.
            NotFoundError: the version was removed.
        """
        return moved(self._store.load(Pointer.read(path)), map_location)

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        return False

    def set_commit_info(self, info: CheckpointCommitInfo) -> None:
        self._info = info

    def get_commit_info(self) -> CheckpointCommitInfo | None:
        return None  # there is no deferred commit

    def cleanup(self) -> None:
        self._store.close()

    def preserves_storage_sharing(self) -> bool:
        return False  # only a tensor's own elements are saved, so DeepSpeed need not clone it
