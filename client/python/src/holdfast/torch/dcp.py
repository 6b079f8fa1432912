"""torch.distributed.checkpoint on Holdfast: a storage writer and a storage reader.

    dcp.save(state_dict, storage_writer=hf.StorageWriter("my-job", step=step))
    dcp.load(state_dict, storage_reader=hf.StorageReader("my-job"))

Planners, async_save and resharding work as with torch's own. Nothing is pickled into the
checkpoint: values that are not tensors are JSON in it, and the pickle that planners expect is made
on loading.
"""

from __future__ import annotations

import atexit
import dataclasses
import io
import logging
import os
import threading
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint.planner import (
    LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem, WriteItemType)
from torch.distributed.checkpoint.storage import (
    StorageReader as _StorageReader, StorageWriter as _StorageWriter, WriteResult)
from torch.futures import Future

from ..client import Client, Tier, Version
from ..errors import (FailedPreconditionError, HoldfastError, InvalidArgumentError, NotFoundError,
                      UnsupportedError)
from ..tensors import Tensor, check_name, slice_name
from . import values
from .boxes import stored_form, torch_dtype
from .identity import SAMPLES, of_rank, split
from .plan import agreed_run_id

__all__ = ["StorageReader", "StorageWriter"]

_EXTRA = "torch.dcp"
_logger = logging.getLogger("holdfast")


def _rank_and_world(group: dist.ProcessGroup | None) -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group), dist.get_world_size(group)
    return 0, 1


class _Session:
    """This process's client of a job: writers come and go with their steps, it stays."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.run_id: str | None = None
        self.client: Client | None = None
        self.described: list[Tensor] = []
        self.extra_bytes = 1 << 20
        #: A load was a start of the job, so the saves behind it are another: its name, on all
        #: ranks. What planners keep of older plans has the name of an older start.
        self.next_run_id: str | None = None
        self.ended: set[str] = set()

    def current(self, run_id: str) -> str:
        """The start that saves belong to, where a plan says `run_id`."""
        outer = os.environ.get("HOLDFAST_RUN_ID")  # one start, whatever is loaded in it
        return outer or (self.next_run_id if run_id in self.ended and self.next_run_id else run_id)

    def end(self, next_run_id: str | None) -> None:
        """The saves so far were those of a start that is over."""
        self.close()
        if self.run_id is not None:
            self.ended.add(self.run_id)
        self.run_id, self.next_run_id = None, next_run_id

    def open(self, job: str, place: tuple[str, int, int], tensors: list[Tensor], extra_bytes: int,
             options: dict[str, Any]) -> Client:
        run_id, rank, world = place
        same = (self.client is not None and self.run_id == run_id and self.described == tensors
                and extra_bytes <= self.extra_bytes)
        if not same:
            self.close()
            self.extra_bytes = max(self.extra_bytes, 2 * extra_bytes)
            self.client = Client(job, tensors, rank=rank, world=world, run_id=run_id,
                                 extra_bytes_max=self.extra_bytes, **options)
            self.run_id, self.described = run_id, tensors
        assert self.client is not None
        return self.client

    def close(self) -> None:
        client, self.client = self.client, None
        if client is None:
            return
        try:
            client.close(timeout=60.0)
        except HoldfastError as error:
            # What was saved was waited for within save(), which has raised it.
            _logger.debug("closing: %s", error)


_sessions: dict[str, _Session] = {}


def _session(job: str) -> _Session:
    return _sessions.setdefault(job, _Session())


@atexit.register
def _close_all() -> None:
    for session in _sessions.values():
        session.close()


class StorageWriter(_StorageWriter):
    """Writes a state_dict as version `step` of a job. It is committed when dcp.save() returns.

    Args:
        job, step: steps grow within one start of the job.
        timeout: seconds for this rank's part, and for the commit.
        allow_pickle: values without a JSON form are pickled; they load only with allow_pickle.
        client_options: further arguments of `holdfast.Client`.
    """

    def __init__(self, job: str, step: int, *, timeout: float = 120.0, allow_pickle: bool = False,
                 **client_options: Any) -> None:
        self.job, self.step, self.timeout = job, step, timeout
        self._allow_pickle = allow_pickle
        self._options = client_options
        self._is_coordinator = True
        #: In another process than the one that made it: torch's asynchronous checkpointing there.
        self._elsewhere = False
        self._next: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_elsewhere": True, "_next": _session(self.job).next_run_id}

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """The step is the writer's own: a checkpoint_id has no meaning here."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("a version is all ranks' or none's: save without "
                                   "use_collectives=False")
        self._is_coordinator = is_coordinator
        session = _session(self.job)
        if self._elsewhere and session.next_run_id != self._next:
            session.end(self._next)  # the process that trains has loaded meanwhile

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells all ranks their places, and the name of this start of the job: the one that the
        first save began."""
        session = _session(self.job)
        run_id = os.environ.get("HOLDFAST_RUN_ID") or session.run_id or session.next_run_id \
            or uuid.uuid4().hex
        return [dataclasses.replace(plan, storage_data=(run_id, rank, len(plans)))
                for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors: dict[str, Tensor] = {}
        types: dict[str, str] = {}
        objects: dict[str, Any] = {}
        number_of: dict[str, int] = {}  # shards of each tensor so far, but one
        results = []
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                objects[item.index.fqn] = self._object(item, planner)
                results.append(WriteResult(item.index, 0, None))
            else:
                tensor = self._tensor(item, planner, types)
                further = number_of[tensor.name] = number_of.get(tensor.name, -1) + 1
                if further > 0:
                    tensor = dataclasses.replace(tensor, name=slice_name(tensor.name, further))
                tensors[tensor.name] = tensor
                results.append(WriteResult(item.index, tensor.owner.nbytes, None))
        extra = values.dumps({
            "types": types, "objects": objects,
            "planner": values.encode(plan.planner_data, "planner_data", self._allow_pickle)})
        self._save(plan.storage_data, list(tensors.values()), extra)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _object(self, item: WriteItem, planner: SavePlanner) -> Any:
        name = item.index.fqn
        if hasattr(planner, "lookup_object"):
            return values.encode(planner.lookup_object(item.index), name, self._allow_pickle)
        if not self._allow_pickle:
            raise values.UnsupportedValueError(
                f"'{name}': {type(planner).__name__} gives values as pickles only (it has no "
                f"lookup_object): pass allow_pickle=True")
        data = planner.resolve_data(item)
        return {"$": "raw", "v": values.encode(data.getvalue(), name)}

    @staticmethod
    def _tensor(item: WriteItem, planner: SavePlanner, types: dict[str, str]) -> Tensor:
        name = item.index.fqn
        check_name(name)
        data = item.tensor_data
        if data is None:
            raise InvalidArgumentError(f"'{name}' is planned as a tensor, without its place")
        # Dense, and kept until the copy is done.
        stored, dtype, real = stored_form(planner.resolve_data(item).detach().contiguous(), name)
        if real:
            types[name] = real
        more = tuple(stored.shape[len(data.size):])
        cuda = stored.device.type == "cuda"
        return Tensor(name, stored.data_ptr(), dtype, tuple(stored.shape), tuple(data.size) + more,
                      tuple(data.chunk.offsets) + (0,) * len(more), 1 if cuda else 0,
                      (stored.device.index or 0) if cuda else 0, stored)

    def _save(self, place: tuple[str, int, int], tensors: list[Tensor], extra: bytes) -> None:
        session = _session(self.job)
        with session.lock:
            run_id, rank, world = place
            client = session.open(self.job, (session.current(run_id), rank, world), tensors,
                                  len(extra), self._options)
            stream = torch.cuda.current_stream().cuda_stream \
                if any(tensor.device for tensor in tensors) else 0
            client.save(self.step, {_EXTRA: extra}, stream=stream, wait_for_slot=self.timeout)
            # The caller may change the tensors when this returns.
            client.wait(self.step, Tier.SEALED, self.timeout)
            client.guard(stream)
            if self._elsewhere and not self._is_coordinator:
                session.close()  # the process that trains may want to load

    def finish(self, metadata: md.Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when all ranks have written: the version is there once this
        returns."""
        session = _session(self.job)
        if session.client is None:
            raise FailedPreconditionError("finish() before write_data()")
        session.client.wait(self.step, Tier.MEMORY, self.timeout)
        if self._elsewhere:
            session.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return False

    def storage_meta(self) -> md.StorageMeta | None:
        return None


class StorageReader(_StorageReader):
    """Reads a version of a job, whatever the world that saved it; also what Checkpointer saved.

    Loading is a start of the job: writers of this process that were open are closed first, and the
    next save begins another one. Under `holdfast run` there is one start, which loads one version.

    Args:
        job: as for saving.
        version: None: the newest that can be got back.
        process_group, no_dist: as given to dcp.load(), which does not pass them on.
    """

    def __init__(self, job: str, version: Version | None = None, *, timeout: float = 120.0,
                 allow_pickle: bool = False, process_group: dist.ProcessGroup | None = None,
                 no_dist: bool = False, **client_options: Any) -> None:
        self.job, self.version, self.timeout = job, version, timeout
        self._group, self._alone = process_group, no_dist
        self._allow_pickle = allow_pickle
        self._options = client_options
        self._objects: dict[str, Any] = {}
        self._types: dict[str, str] = {}
        #: Key of the metadata → name in the version.
        self._names: dict[str, str] = {}
        self._sizes: dict[str, torch.Size] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._client: Client | None = None
        self._view: Any = None

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._close()

    def _close(self) -> None:
        view, self._view = self._view, None
        client, self._client = self._client, None
        if view is not None:
            view.close()
        if client is not None:
            client.close()

    def _open(self) -> None:
        self._close()
        rank, world = (0, 1) if self._alone else _rank_and_world(self._group)
        run_id = os.environ.get("HOLDFAST_RUN_ID") or (
            uuid.uuid4().hex if self._alone else agreed_run_id(world, self._group))
        _session(self.job).end(f"{run_id}-then")
        self._client = Client(self.job, [], rank=rank, world=world, run_id=run_id, **self._options)
        self._view = self._client.view(self.version, self.timeout)
        if self._view is None:
            self._close()
            raise NotFoundError(f"job '{self.job}' has no version to load")

    def read_metadata(self) -> md.Metadata:
        """Opens the version; all ranks call this together. (None has metadata of its own: a rank
        that fails must not go on without the others.)"""
        self._open()
        planner_data: dict[str, Any] = {}
        self._objects, self._types = {}, {}
        keeps_apart = False
        for extras in self._view.extras().values():
            said = values.loads(extras.get(_EXTRA) or extras.get("torch.layout") or b"{}")
            keeps_apart |= said.get("format", 1) >= 2
            self._types.update(said.get("types", {}))
            self._objects.update(said.get("objects", {}))
            planner_data.update(values.decode(said.get("planner"), "planner_data",
                                              self._allow_pickle) or {})
        found: dict[str, Any] = {name: md.BytesStorageMetadata() for name in self._objects}
        seen: set[tuple[str, torch.Size, torch.Size]] = set()
        pieces = [piece for piece in self._view.pieces() if not piece.name.startswith(SAMPLES)]
        keys = self._keys({piece.name for piece in pieces} if keeps_apart else set())
        self._names = {key: name for name, key in keys.items()}
        for piece in pieces:
            key = keys.get(piece.name, piece.name)
            dtype, real = torch_dtype(piece.dtype), self._types.get(piece.name)
            rank = len(piece.shape)
            if real is not None:
                dtype = values.dtype_of(real)
                rank -= 1 if dtype.is_complex else 0
            known = found.setdefault(key, md.TensorStorageMetadata(
                md.TensorProperties(dtype=dtype), torch.Size(piece.global_shape[:rank]), []))
            # Where ranks have saved the same, one is enough.
            chunk = md.ChunkStorageMetadata(torch.Size(piece.offset[:rank]),
                                            torch.Size(piece.shape[:rank]))
            if (key, chunk.offsets, chunk.sizes) not in seen:
                seen.add((key, chunk.offsets, chunk.sizes))
                known.chunks.append(chunk)
            self._sizes[key], self._dtypes[key] = known.size, dtype
        return md.Metadata(found, planner_data=planner_data or None)

    def _keys(self, names: set[str]) -> dict[str, str]:
        """What this rank has saved for itself, in the world that saved it, and what only one group
        of ranks shares, goes by its name in the state."""
        rank, world = (0, 1) if self._alone else _rank_and_world(self._group)
        own = of_rank(rank) if world == self._view.world else None
        groups: dict[str, list[str]] = {}
        keys: dict[str, str] = {}
        for name in names:
            saved = split(name)
            if saved.kind == "group":
                groups.setdefault(saved.name, []).append(name)
            if saved.qualifier == own and own is not None:
                keys[name] = saved.name
        taken = set(keys.values())
        keys.update((found[0], plain) for plain, found in groups.items()
                    if len(found) == 1 and plain not in taken)
        return {name: plain for name, plain in keys.items() if plain not in names}

    def set_up_storage_reader(self, metadata: md.Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        targets: list[Tensor] = []
        copies = []
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes(name))
                continue
            target = planner.resolve_tensor(item).detach()
            # The planner's tensor may be on a device, strided, or of another type.
            memory = torch.empty(tuple(item.lengths), dtype=self._dtypes[name])
            stored, dtype, _ = stored_form(memory, name)
            offset = tuple(a + b for a, b in zip(item.storage_index.offset or (0,) * target.dim(),
                                                 item.storage_offsets))
            more = tuple(stored.shape[memory.dim():])
            if memory.numel() > 0:
                targets.append(Tensor(self._names.get(name, name), stored.data_ptr(), dtype,
                                      tuple(stored.shape),
                                      tuple(self._sizes[name]) + more,
                                      offset + (0,) * len(more), owner=memory))
            copies.append((item, target, memory))
        try:
            self._view.load(targets, self.timeout)
        finally:
            self._close()
        for item, target, memory in copies:
            target.copy_(memory)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _bytes(self, name: str) -> io.BytesIO:
        """What planners load: a pickle, but one that is made here and now."""
        encoded = self._objects[name]
        if isinstance(encoded, dict) and encoded.get("$") == "raw":
            if not self._allow_pickle:
                raise values.UnsupportedValueError(
                    f"'{name}' was saved by pickling it, and loading a pickle runs what is in it: "
                    f"pass allow_pickle=True if you trust who wrote this checkpoint")
            return io.BytesIO(values.decode(encoded["v"], name))
        stream = io.BytesIO()
        torch.save(values.decode(encoded, name, self._allow_pickle), stream)
        stream.seek(0)
        return stream

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return False
