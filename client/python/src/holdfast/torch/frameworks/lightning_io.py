"""Lightning's checkpoints as versions of a job."""

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
    """Lightning saves to and loads from Holdfast.

        trainer = Trainer(plugins=[hf.CheckpointIO(job="my-run")],
                          callbacks=[ModelCheckpoint(every_n_train_steps=10, save_last=True)])
        trainer.fit(model, ckpt_path="last")

    A checkpoint becomes the version whose step is the checkpoint's global step, or the next free
    one. At its path there is a small file that says which version it is, written when the version
    is committed: ModelCheckpoint, "last" and "best" work as ever. `ckpt_path=CheckpointIO.NEWEST`
    loads the newest version, wherever the folder is: of the line that was loaded last.

    Strategies whose rank 0 saves for all (single device, DDP) are served. The job is one of a
    single rank, with a name of its own; all ranks load it together.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same at each start.
        tier: where a version is safe before a save returns. On disk it stays as long as retention
            keeps it, as a file would; in memory, which is sooner, the newest is kept for sure.
        timeout: seconds, of a save and of a load.
        allow_pickle: values that have no JSON form are pickled, and pickles in checkpoints loaded.
        client_options: further arguments of `holdfast.Client`.
    """

    #: A path that stands for the job's newest version.
    NEWEST = "holdfast-newest"

    def __init__(self, job: str, *, tier: Tier = Tier.DISK, timeout: float = 120.0,
                 allow_pickle: bool = False, **client_options: Any) -> None:
        if job == os.environ.get("HOLDFAST_JOB") and os.environ.get("WORLD_SIZE", "1") != "1":
            raise InvalidArgumentError(f"job {job} is the one that holdfast run has started, with "
                                       f"several ranks; Lightning saves on one: give "
                                       f"CheckpointIO another name, such as {job}.lightning")
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
        """On rank 0. Returns when the checkpoint is committed. One that cannot be, since the agent
        is away or overloaded, is left out with a warning: training goes on.

        Raises:
            UnsupportedValueError: names a value that only a pickle could hold.
            FencedError: a newer start of the job is saving.
        """
        if storage_options is not None:
            raise TypeError("CheckpointIO of Holdfast has no storage_options: its constructor "
                            "takes what there is to choose")
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
        """On all ranks together. Nothing is unpickled, whatever `weights_only` says, but with
        `allow_pickle`.

        Raises:
            FileNotFoundError: there is no such file; or no version, for NEWEST.
            NotFoundError: the version is kept no more.
        """
        # Loading is a start of the job, of all ranks; rank 0's saves are the next.
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
        """A name of the start, and what rank 0 finds at the path; None: the newest."""
        said: list[Any] = [uuid.uuid4().hex, None]
        if _rank() == 0 and os.fspath(path) != self.NEWEST:
            try:
                said[1] = Pointer.read(os.fspath(path))
            except (OSError, HoldfastError) as error:
                said[1] = error
        if _world() > 1:
            dist.broadcast_object_list(said)
        if isinstance(said[1], Exception):
            raise said[1]
        return said[0], said[1]

    def remove_checkpoint(self, path: str | os.PathLike) -> None:
        """Removes the file at the path. The version stays as long as the job's retention keeps it:
        which versions those are is the service's to say (`holdfast pin` keeps one)."""
        try:
            Pointer.read(os.fspath(path))
        except FileNotFoundError:
            return
        except (InvalidArgumentError, OSError) as error:
            _logger.warning("%s is left where it is: %s", path, error)
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
