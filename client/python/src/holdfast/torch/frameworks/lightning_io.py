"""Saves Lightning's checkpoints as versions of a job."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from typing import Any

import torch.distributed as dist

if "lightning" not in sys.modules and "lightning_fabric" in sys.modules:
    from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO as _CheckpointIO
else:
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO as _CheckpointIO

from ...client import Tier
from ...errors import (AbortedError, DeadlineExceededError, HoldfastError, InvalidArgumentError,
                       ResourceExhaustedError, UnavailableError)
from .trees import Pointer, TreeStore, moved

__all__ = ["CheckpointIO"]

_logger = logging.getLogger("holdfast")
_NAME = "checkpoint"


class CheckpointIO(_CheckpointIO):
    """A plugin with which Lightning saves to Holdfast and loads from it.

        trainer = Trainer(plugins=[hf.CheckpointIO(job="my-run")],
                          callbacks=[ModelCheckpoint(every_n_train_steps=10, save_last=True)])
        trainer.fit(model, ckpt_path="last")

    A checkpoint becomes a version whose step is the checkpoint's global step, or the next free one.
    At its path there is a small pointer file that names the version, written when the version is
    committed. ModelCheckpoint, "last" and "best" work as usual. `ckpt_path=CheckpointIO.NEWEST`
    loads the newest version of the current lineage, without any pointer file.

    The plugin supports strategies in which rank 0 saves for all (single device, DDP). The job must
    have its own name and has a single rank when saving. All ranks load it together.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same at each start.
        tier: where a version is committed before a save returns. On disk, it stays as long as
            retention keeps it. Memory is faster, and only the newest version is sure to be kept
            there.
        timeout: seconds for a save, and for a load.
        allow_pickle: pickle values that have no JSON form, and load pickles from checkpoints.
        client_options: further arguments of `holdfast.Client`.
    """

    #: A path that means the newest version of the job.
    NEWEST = "holdfast-newest"

    def __init__(self, job: str, *, tier: Tier = Tier.DISK, timeout: float = 120.0,
                 allow_pickle: bool = False, **client_options: Any) -> None:
        if job == os.environ.get("HOLDFAST_JOB") and os.environ.get("WORLD_SIZE", "1") != "1":
            raise InvalidArgumentError(f"job {job} is the run's own job, which has several ranks, "
                                       f"and Lightning saves on one rank: give CheckpointIO "
                                       f"another name, such as {job}.lightning")
        self.job = job
        self._options = dict(tier=tier, timeout=timeout, allow_pickle=allow_pickle, keep=True,
                             **client_options)
        self._store: TreeStore | None = None

    def _saver(self) -> TreeStore:
        if self._store is None:
            self._store = TreeStore(self.job, rank=0, world=1, run_id=uuid.uuid4().hex,
                                    **self._options)
        return self._store

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike,
                        storage_options: Any = None) -> None:
        """Saves a checkpoint. Called on rank 0. Returns when the checkpoint is committed.

        If the agent is missing or overloaded, the checkpoint is skipped with a warning, and training
        goes on.

        Raises:
            UnsupportedValueError: a value can only be saved as a pickle; the message names it.
            FencedError: a newer start of the job is saving.
        """
        if storage_options is not None:
            raise TypeError("Holdfast's CheckpointIO has no storage_options: pass options to its "
                            "constructor")
        try:
            store = self._saver()
            version = store.save({_NAME: checkpoint}, int(checkpoint.get("global_step", 0)))
        except (UnavailableError, ResourceExhaustedError, DeadlineExceededError,
                AbortedError) as error:
            _logger.warning("%s is not saved: %s", path, error)
            return
        Pointer(self.job, *version, 0, _NAME).write(os.fspath(path))

    def load_checkpoint(self, path: str | os.PathLike, map_location: Any = None,
                        weights_only: bool | None = None) -> dict[str, Any]:
        """Loads a checkpoint. All ranks call this together. Pickles are loaded only with
        `allow_pickle`; `weights_only` has no effect.

        Raises:
            FileNotFoundError: there is no such file or, for NEWEST, no version.
            NotFoundError: the version was removed.
        """
        # The load is one start of the job, with all ranks. Rank 0's saves are the next start.
        self.teardown()
        run_id, pointer = self._agreed(path)
        store = TreeStore(self.job, rank=_rank(), world=_world(), run_id=run_id, **self._options)
        try:
            pointer = pointer or store.newest()
            if pointer is None:
                raise FileNotFoundError(f"job {self.job} has no version yet")
            return moved(store.load(pointer), map_location)
        finally:
            store.close()

    def _agreed(self, path: str | os.PathLike) -> tuple[str, Pointer | None]:
        """The run ID and rank 0's pointer, the same on all ranks. No pointer: the newest version."""
        shared: list[Any] = [uuid.uuid4().hex, None]
        if _rank() == 0 and os.fspath(path) != self.NEWEST:
            try:
                shared[1] = Pointer.read(os.fspath(path))
            except (OSError, HoldfastError) as error:
                shared[1] = error
        if _world() > 1:
            dist.broadcast_object_list(shared)
        if isinstance(shared[1], Exception):
            raise shared[1]
        return shared[0], shared[1]

    def remove_checkpoint(self, path: str | os.PathLike) -> None:
        """Removes the pointer file at the path. The version stays as long as the job's retention keeps
        it. `holdfast pin` keeps a version."""
        try:
            Pointer.read(os.fspath(path))
        except FileNotFoundError:
            return
        except (InvalidArgumentError, OSError) as error:
            _logger.warning("%s is not removed: %s", path, error)
            return
        os.unlink(path)

    def teardown(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except HoldfastError as error:
                _logger.warning("closing job %s: %s", self.job, error)


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
