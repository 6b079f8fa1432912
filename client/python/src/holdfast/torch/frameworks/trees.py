"""Saves the checkpoints of frameworks, which are trees of tensors and values, as versions of a job, and
writes pointer files in place of the frameworks' files."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Callable, Mapping

import torch
from torch.utils import _pytree as pytree

from ...client import Tier, Version
from ...errors import InvalidArgumentError, NotFoundError, UnavailableError
from .. import values
from ..checkpointer import Checkpointer
from ..parts import GeneralPart
from ..plan import agreed_run_id
from ..restoring import fill
from ..saved import Saved

__all__ = ["Pointer", "TreeStore", "moved"]

_ENTRY = "trees"


@dataclass(frozen=True)
class Pointer:
    """Names the tree of a version that a path stands for. The file is JSON of a few hundred bytes."""

    job: str
    incarnation: int
    step: int
    rank: int
    name: str

    @property
    def version(self) -> Version:
        return Version(self.incarnation, self.step)

    def write(self, path: str) -> None:
        """Writes the file atomically and syncs it."""
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        part = f"{path}.{uuid.uuid4().hex}.part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"holdfast": 1, **asdict(self)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)

    @staticmethod
    def read(path: str) -> Pointer:
        """Reads a pointer file. Raises FileNotFoundError, and InvalidArgumentError for any other file."""
        with open(path, "rb") as file:
            data = file.read(64 << 10)
        try:
            found = json.loads(data)
            if found.pop("holdfast") != 1:
                raise ValueError(data)
            return Pointer(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(
                f"{path} is not a Holdfast checkpoint but a regular file: load it without "
                f"Holdfast's plugin") from error


class _Trees(GeneralPart):
    """A part for trees whose tensors do not change until their copy is done."""

    copied = False

    def __init__(self, allow_pickle: bool) -> None:
        super().__init__(_ENTRY, self, allow_pickle)
        self.trees: Mapping[str, Any] = {}

    def state_dict(self) -> Mapping[str, Any]:
        return self.trees


class TreeStore:
    """Saves named trees of each rank as one version of a job, and loads any of them. All ranks create
    their store together.

    Args:
        job, rank, world, run_id, allow_pickle, client_options: as for `Checkpointer`.
        tier: where a version is committed before `save` returns.
        timeout: seconds for a save, and for a load.
        keep: True if the tensors are the live ones of a model, the same at each save: they stay
            described. False: they are released after each save, and described again.
    """

    def __init__(self, job: str, *, rank: int, world: int, run_id: str | None, tier: Tier,
                 timeout: float, allow_pickle: bool, keep: bool, **client_options: Any) -> None:
        self.job, self.rank, self.world = job, rank, world
        self.tier, self.timeout, self.keep = tier, timeout, keep
        self._part = _Trees(allow_pickle)
        self._options = dict(rank=rank, world=world, guard_steps=False, random_states=False,
                             allow_pickle=allow_pickle,
                             **{"agent_timeout": 10.0, **client_options})
        self._start(run_id)

    def _start(self, run_id: str | None) -> None:
        self._checkpointer = Checkpointer(self.job, {_ENTRY: self._part}, run_id=run_id,
                                          **self._options)
        self._checkpointer.connect()
        self._last = -1
        self._loaded: Version | None = None

    def save(self, trees: Mapping[str, Any], step: int) -> Version:
        """Saves the trees of all ranks as version `step`, or as the next free step. All ranks call
        this with the same step. Returns when the version is committed.

        Raises:
            HoldfastError: the version is not committed.
        """
        step = self._last = max(step, self._last + 1)
        self._part.trees = dict(trees)
        try:
            self._submit(step)
            self._checkpointer.wait(step, self.tier, self.timeout)
            return Version(self._checkpointer.stats()["incarnation"], step)
        finally:
            # The caller may change the trees again.
            self._part.trees = {}
            if self.keep:
                self._checkpointer._guard_quietly()
            else:
                self._checkpointer.forget()

    def _submit(self, step: int) -> None:
        if not self._checkpointer.save(step, wait_for_slot=self.timeout):
            raise UnavailableError(f"step {step} of job {self.job} is not saved: the agent "
                                   f"is missing or has no free memory; see the log")

    def newest(self) -> Pointer | None:
        """The first tree of rank 0 in the newest version. None: the job has no version."""
        reader = self._checkpointer.open_version(None, self.timeout)
        if reader is None:
            return None
        with reader:
            _, state = Saved(reader, self.rank, self.world).values_of(0)
            name = next(iter(self._trees_of(state, reader.version)))
            return Pointer(self.job, *reader.version, 0, name)

    def _trees_of(self, state: Any, version: Version) -> Any:
        trees = state["parts"].get(_ENTRY)
        if not trees:
            raise InvalidArgumentError(f"version {version} of job {self.job} was not saved by "
                                       f"a framework's plugin: restore it with Checkpointer")
        return trees

    def load(self, pointer: Pointer) -> Any:
        """Loads a tree, with its tensors in host memory. All ranks load from the same version.

        Raises:
            NotFoundError: the version was removed.
        """
        if pointer.job != self.job:
            raise InvalidArgumentError(f"the checkpoint belongs to job {pointer.job}, not to "
                                       f"{self.job}: give the plugin that name")
        if self._loaded not in (None, pointer.version) and not os.environ.get("HOLDFAST_RUN_ID"):
            # A start of a job loads one version: another version needs another start.
            self._checkpointer.close(self.timeout)
            self._start(agreed_run_id(self.world))
        self._loaded = pointer.version
        allow_pickle = self._part.allow_pickle
        reader = self._checkpointer.open_version(pointer.version, self.timeout)
        assert reader is not None  # a named version: if missing, open_version raises
        with reader:
            saved = Saved(reader, self.rank, self.world)
            _, state = saved.values_of(pointer.rank)
            encoded = self._trees_of(state, reader.version).get(pointer.name)
            if encoded is None:
                raise NotFoundError(f"version {reader.version} of job {self.job} has no "
                                    f"{pointer.name} of rank {pointer.rank}")
            tensors = self._part.wanted(encoded)
            fill(saved, pointer.rank, tensors, self.timeout)
            return values.decode(encoded, pointer.name, allow_pickle,
                                 lambda item: tensors[item["v"]])

    def close(self) -> None:
        self._checkpointer.close(self.timeout)


def moved(tree: Any, map_location: Any) -> Any:
    """Moves the tensors of a tree from the host to `map_location`, as torch.load does. A function as
    `map_location` leaves them on the host."""
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu")
    if map_location is None or isinstance(map_location, Callable):  # type: ignore[arg-type]
        return tree
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(map_location), tree)
