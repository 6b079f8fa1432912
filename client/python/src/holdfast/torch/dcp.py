"""torch.distributed.checkpoint on Holdfast: a storage writer and a storage reader.

    dcp.save(state_dict, storage_writer=hf.StorageWriter("my-job", step=step))
    dcp.load(state_dict, storage_reader=hf.StorageReader("my-job"))

Planners, async_save and resharding work as with torch's own storage. Nothing in the checkpoint is
pickled: values that are not tensors are JSON, and the pickle that planners expect is made at
loading.
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
    """This process's client of a job. It is shared by the writers of all steps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.run_id: str | None = None
        self.client: Client | None = None
        self.described: list[Tensor] = []
        self.extra_bytes = 1 << 20
        #: The run ID of the saves after a load, the same on all ranks. A load is a start of the job,
        #: so these saves belong to another start. Cached plans still have the older run ID.
        self.next_run_id: str | None = None
        self.ended: set[str] = set()

    def current(self, run_id: str) -> str:
        """The run ID to save under for a plan that has `run_id`."""
        outer = os.environ.get("HOLDFAST_RUN_ID")  # one start, also after loads
        return outer or (self.next_run_id if run_id in self.ended and self.next_run_id else run_id)

    def end(self, next_run_id: str | None) -> None:
        """Ends the start of the saves so far. Further saves use `next_run_id`."""
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
            # Each save has waited for its version and raised its own errors.
            _logger.debug("closing: %s", error)


_sessions: dict[str, _Session] = {}


def _session(job: str) -> _Session:
    return _sessions.setdefault(job, _Session())


@atexit.register
def _close_all() -> None:
    for session in _sessions.values():
        session.close()


class StorageWriter(_StorageWriter):
    """Writes a state_dict as version `step` of a job. The version is committed when dcp.save() returns.

    Args:
        job, step: steps must grow within one start of the job.
        timeout: seconds for this rank's part, and for the commit.
        allow_pickle: pickle values that have no JSON form. They load only with allow_pickle.
        client_options: further arguments of `holdfast.Client`.
    """

    def __init__(self, job: str, step: int, *, timeout: float = 120.0, allow_pickle: bool = False,
                 **client_options: Any) -> None:
        self.job, self.step, self.timeout = job, step, timeout
        self._allow_pickle = allow_pickle
        self._options = client_options
        self._is_coordinator = True
        #: The writer was sent to another process, by torch's asynchronous checkpointing.
        self._elsewhere = False
        self._next: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_elsewhere": True, "_next": _session(self.job).next_run_id}

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """Ignores the checkpoint_id: the writer's step identifies the version."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("a version needs all ranks: save without "
                                   "use_collectives=False")
        self._is_coordinator = is_coordinator
        session = _session(self.job)
        if self._elsewhere and session.next_run_id != self._next:
            session.end(self._next)  # the training process has loaded a version since

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Sends each rank its number and the run ID, which is that of the first save of this
        start."""
        session = _session(self.job)
        run_id = os.environ.get("HOLDFAST_RUN_ID") or session.run_id or session.next_run_id \
            or uuid.uuid4().hex
        return [dataclasses.replace(plan, storage_data=(run_id, rank, len(plans)))
                for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors: dict[str, Tensor] = {}
        types: dict[str, str] = {}
        objects: dict[str, Any] = {}
        number_of: dict[str, int] = {}  # number of the latest slice of each tensor
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
                f"'{name}': {type(planner).__name__} provides values only as pickles (it has no "
                f"lookup_object): pass allow_pickle=True")
        data = planner.resolve_data(item)
        return {"$": "raw", "v": values.encode(data.getvalue(), name)}

    @staticmethod
    def _tensor(item: WriteItem, planner: SavePlanner, types: dict[str, str]) -> Tensor:
        name = item.index.fqn
        check_name(name)
        data = item.tensor_data
        if data is None:
            raise InvalidArgumentError(f"'{name}' is planned as a tensor, but without its offsets and sizes")
        # A dense tensor, which the description keeps alive until the copy is done.
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
            # The caller may change the tensors after this returns.
            client.wait(self.step, Tier.SEALED, self.timeout)
            client.guard(stream)
            if self._elsewhere and not self._is_coordinator:
                session.close()  # the training process may load next

    def finish(self, metadata: md.Metadata, results: list[list[WriteResult]]) -> None:
        """Blocks until the version is committed. Called on the coordinator rank after all ranks have
        written."""
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
    """Reads a version of a job that any number of ranks saved, also with Checkpointer.

    Loading is a start of the job. It closes the open writers of this process, and the next save
    begins another start. Under `holdfast run` there is only one start, which loads one version.

    Args:
        job: as for saving.
        version: None: the newest restorable version.
        timeout: seconds.
        allow_pickle: load values that were saved as pickles. A pickle can run any code.
        process_group, no_dist: the same as passed to dcp.load(), which does not pass them on.
        client_options: further arguments of `holdfast.Client`.
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
        self._reader: Any = None

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._close()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        client, self._client = self._client, None
        if reader is not None:
            reader.close()
        if client is not None:
            client.close()

    def _open(self) -> None:
        self._close()
        rank, world = (0, 1) if self._alone else _rank_and_world(self._group)
        run_id = os.environ.get("HOLDFAST_RUN_ID") or (
            uuid.uuid4().hex if self._alone else agreed_run_id(world, self._group))
        _session(self.job).end(f"{run_id}-then")
        self._client = Client(self.job, [], rank=rank, world=world, run_id=run_id, **self._options)
        self._reader = self._client.open_version(self.version, self.timeout)
        if self._reader is None:
            self._close()
            raise NotFoundError(f"job '{self.job}' has no version to load")

    def read_metadata(self) -> md.Metadata:
        """Opens the version. All ranks call this together.

        No rank reads metadata alone, since a rank that fails must not go on without the others.
        """
        self._open()
        planner_data: dict[str, Any] = {}
        self._objects, self._types = {}, {}
        keeps_apart = False
        for extras in self._reader.extras().values():
            extra = values.loads(extras.get(_EXTRA) or extras.get("torch.layout") or b"{}")
            keeps_apart |= extra.get("format", 1) >= 2
            self._types.update(extra.get("types", {}))
            self._objects.update(extra.get("objects", {}))
            planner_data.update(values.decode(extra.get("planner"), "planner_data",
                                              self._allow_pickle) or {})
        found: dict[str, Any] = {name: md.BytesStorageMetadata() for name in self._objects}
        seen: set[tuple[str, torch.Size, torch.Size]] = set()
        pieces = [piece for piece in self._reader.pieces() if not piece.name.startswith(SAMPLES)]
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
            # If several ranks saved the same box, one chunk is enough.
            chunk = md.ChunkStorageMetadata(torch.Size(piece.offset[:rank]),
                                            torch.Size(piece.shape[:rank]))
            if (key, chunk.offsets, chunk.sizes) not in seen:
                seen.add((key, chunk.offsets, chunk.sizes))
                known.chunks.append(chunk)
            self._sizes[key], self._dtypes[key] = known.size, dtype
        return md.Metadata(found, planner_data=planner_data or None)

    def _keys(self, names: set[str]) -> dict[str, str]:
        """Maps names in the version to the names in the state that they are loaded under.

        These are the tensors that this rank saved for itself, if the world is the same, and tensors
        that only one group of ranks shares.
        """
        rank, world = (0, 1) if self._alone else _rank_and_world(self._group)
        own = of_rank(rank) if world == self._reader.world else None
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
            self._reader.load(targets, self.timeout)
        finally:
            self._close()
        for item, target, memory in copies:
            target.copy_(memory)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _bytes(self, name: str) -> io.BytesIO:
        """A value in the form that planners load: a pickle, made from the decoded value."""
        encoded = self._objects[name]
        if isinstance(encoded, dict) and encoded.get("$") == "raw":
            if not self._allow_pickle:
                raise values.UnsupportedValueError(
                    f"'{name}' was saved by pickling it, and loading a pickle runs the code in it: "
                    f"pass allow_pickle=True if you trust the writer of this checkpoint")
            return io.BytesIO(values.decode(encoded["v"], name))
        stream = io.BytesIO()
        torch.save(values.decode(encoded, name, self._allow_pickle), stream)
        stream.seek(0)
        return stream

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return False
