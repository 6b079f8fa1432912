"""Saves a checkpoint of another program as a version of a job, piece by piece."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from dataclasses import dataclass, field
from math import prod
from typing import Any, Sequence

import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

from ..client import Client, Tier, Version
from ..errors import DataLossError, InvalidArgumentError
from ..tensors import Tensor
from . import values
from .boxes import stored_form
from .foreign import Foreign, FullTensor

__all__ = ["Import", "arrange", "save"]


@dataclass
class Import:
    """The tensors and values to save, by their names in the version."""

    tensors: dict[str, FullTensor] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    def entries(self) -> dict[str, list[str]]:
        """The names of all tensors and values, by the entry of the state that they belong to."""
        found: dict[str, list[str]] = {}
        for name in (*self.tensors, *self.objects):
            found.setdefault(str(self.paths[name][0]), []).append(name)
        return found


def arrange(foreign: Foreign, renames: Sequence[tuple[str, str]]) -> Import:
    """Renames a checkpoint's tensors and values to the names in the state of a Checkpointer.

    Args:
        renames: pairs (from, entry). The names under `from` become that entry; an empty `from`
            means all names. Without pairs, the names stay unchanged.

    Raises:
        InvalidArgumentError: the checkpoint has nothing under a `from`, two names would be equal, or
            it has no tensors.
    """
    result = Import()
    used: set[str] = set()

    def place(name: str) -> tuple[str, tuple] | None:
        path = foreign.paths.get(name, (name,))
        if not renames:
            return name, path
        for source, entry in renames:
            if source == "":
                used.add(source)
                return f"{entry}.{name}", (entry, *path)
            if not name.startswith(source + "."):
                continue
            used.add(source)
            rest = name[len(source) + 1:]
            for depth in range(1, len(path)):
                if ".".join(map(str, path[:depth])) == source:
                    return f"{entry}.{rest}", (entry, *path[depth:])
            return f"{entry}.{rest}", (entry, rest)
        return None

    # Tensors and values share one namespace: a name may occur only once among both.
    for kind, to in ((foreign.tensors, result.tensors), (foreign.objects, result.objects)):
        for name, value in kind.items():
            placed = place(name)
            if placed is None:
                continue
            if placed[0] in result.paths:
                raise InvalidArgumentError(f"two values would get the name '{placed[0]}': "
                                           f"choose other entries")
            to[placed[0]], result.paths[placed[0]] = value, placed[1]
    unused = [source for source, _ in renames if source not in used]
    if unused:
        have = sorted({str(path[0]) for path in foreign.paths.values()}
                      or {name.split(".")[0] for name in foreign.tensors})
        raise InvalidArgumentError(f"the checkpoint has nothing under '{unused[0]}'; it has "
                                   f"{', '.join(have[:20])}")
    if not result.tensors:
        raise InvalidArgumentError("the checkpoint has no tensors")
    return result


# --------------------------------------------------------------------- the form of a Checkpointer

def _groups_of(what: Import, entry: str, names: list[str]) -> list[dict[str, Any]] | None:
    """The parameter groups of an entry. None: the entry is not an optimizer."""
    flat = {name: what.objects[name] for name in names
            if name in what.objects and what.paths[name][1:2] == ("param_groups",)}
    if not flat:
        return None
    # One object, or one object per hyperparameter, depending on the version of torch.
    groups = unflatten_state_dict(flat, {name: what.paths[name] for name in flat})[entry][
        "param_groups"]
    good = isinstance(groups, list) and all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
    return groups if good else None


def _optimizer(what: Import, entry: str, groups: list[dict[str, Any]],
               names: list[str]) -> tuple[Any, Any]:
    """(layout, values) in the form of OptimizerPart."""
    layout = []
    for group in groups:
        text = "\n".join(sorted(str(name) for name in group["params"]))
        layout.append({"parameters": len(group["params"]),
                       "names": hashlib.sha256(text.encode()).hexdigest()})
    scalars: dict[str, dict[str, Any]] = {}
    for name in names:
        path = what.paths[name]
        if name in what.objects and len(path) >= 4 and path[1] == "state":
            scalars.setdefault(".".join(map(str, path[2:-1])), {})[str(path[-1])] = \
                what.objects[name]
    kept = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    return layout, values.encode({"groups": kept, "scalars": scalars}, entry)


def _general(what: Import, entry: str, names: list[str]) -> Any:
    """The nested values, with a leaf in place of each tensor."""
    names_by_id: dict[int, str] = {}
    flat, paths = {}, {}
    for name in names:
        value = what.objects.get(name)
        if name in what.tensors:
            tensor = what.tensors[name]
            value = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            names_by_id[id(value)] = name
        flat[name], paths[name] = value, what.paths[name]

    def leaf(tensor: torch.Tensor, _: str) -> Any:
        name = names_by_id.get(id(tensor))
        return None if name is None else {"$": "leaf", "v": name, "shape": list(tensor.shape),
                                          "dtype": str(tensor.dtype)}
    if any(len(path) == 1 for path in paths.values()):
        return {}  # the entry is itself a tensor or a value
    return values.encode(unflatten_state_dict(flat, paths)[entry], entry, tensor=leaf)


def _extras(what: Import, types: dict[str, str], world: int,
            with_objects: bool) -> dict[str, bytes]:
    layouts: dict[str, Any] = {}
    states: dict[str, Any] = {}
    for entry, names in what.entries().items():
        groups = _groups_of(what, entry, names)
        if groups is None:
            layouts[entry], states[entry] = None, _general(what, entry, names)
        else:
            layouts[entry], states[entry] = _optimizer(what, entry, groups, names)
    dcp: dict[str, Any] = {"types": types, "objects": {}, "planner": None}
    if with_objects:
        dcp["objects"] = {name: values.encode(value, name) for name, value in what.objects.items()}
        dcp["planner"] = values.encode(what.paths, "planner_data")
    return {"torch.layout": values.dumps({"format": 1, "world": world, "aliases": {},
                                          "types": types, "parts": layouts}),
            "torch.state": values.dumps({"parts": states}),
            "torch.dcp": values.dumps(dcp)}


# ------------------------------------------------------------------------------------------- saving

def _assemble(name: str, tensor: FullTensor, memory: torch.Tensor) -> None:
    """Copies the boxes into `memory`, which has the size of the full tensor."""
    elements = 0
    for offset, shape, load in tensor.pieces:
        target = memory
        for d, (first, extent) in enumerate(zip(offset, shape)):
            if first < 0 or first + extent > tensor.shape[d]:
                raise DataLossError(f"a piece of '{name}' is outside of the tensor")
            target = target.narrow(d, first, extent)
        target.copy_(load())
        elements += prod(shape)
    if elements < prod(tensor.shape):
        raise DataLossError(f"'{name}' is incomplete in the checkpoint: it has {elements} of "
                            f"{prod(tensor.shape)} elements")


class _Scratch:
    """Memory in an unnamed temporary file, for data that may be larger than the main memory."""

    def __init__(self, bytes: int, folder: str | None) -> None:
        self._file = None
        self._next = 0
        if bytes:
            self._file = tempfile.TemporaryFile(dir=folder)
            os.posix_fallocate(self._file.fileno(), 0, bytes)
            self._memory = torch.UntypedStorage.from_file(
                f"/proc/self/fd/{self._file.fileno()}", shared=True, nbytes=bytes)

    def take(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        flat = torch.empty(0, dtype=torch.uint8).set_(
            self._memory, self._next, (prod(shape) * dtype.itemsize,))
        self._next += (flat.numel() + 63) // 64 * 64
        return flat.view(dtype).reshape(shape)


def _is_one_piece(tensor: FullTensor) -> bool:
    return len(tensor.pieces) == 1 and tensor.pieces[0][1] == tensor.shape


def _mine(tensors: dict[str, FullTensor], rank: int, world: int) -> list[str]:
    """The tensors that this rank saves. All ranks divide the tensors evenly by the same rule."""
    loads, mine = [0] * world, []
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].bytes, item[0])):
        taker = loads.index(min(loads))
        loads[taker] += tensor.bytes
        if taker == rank:
            mine.append(name)
    return mine


def save(what: Import, job: str, step: int, *, tier: Tier = Tier.MEMORY, timeout: float = 600.0,
         scratch: str | None = None, **client_options: Any) -> Version:
    """Saves the import through this node's agent, as a start of the job. Returns the version when it
    is committed.

    Under `holdfast run` each rank saves a part of the tensors. A tensor that the checkpoint has in
    one piece is read directly from its file. The others are first assembled in a file in `scratch`.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    run_id = os.environ.get("HOLDFAST_RUN_ID")
    if run_id is None and world > 1:
        raise InvalidArgumentError("several ranks can import together only under `holdfast run`, or "
                                   "if HOLDFAST_RUN_ID has the same value on all of them")
    types: dict[str, str] = {}
    for name, tensor in what.tensors.items():
        real = stored_form(torch.empty((1,), dtype=tensor.dtype), name)[2]
        if real:
            types[name] = real
    mine = _mine(what.tensors, rank, world)
    # One file for all tensors that must be assembled, since its size is known in advance.
    room = _Scratch(sum((what.tensors[name].bytes + 63) // 64 * 64 for name in mine
                        if not _is_one_piece(what.tensors[name])), scratch)
    tensors = []
    for name in mine:
        tensor = what.tensors[name]
        if _is_one_piece(tensor):
            memory = tensor.pieces[0][2]()
        elif tensor.bytes == 0:
            memory = torch.empty(tensor.shape, dtype=tensor.dtype)
        else:
            memory = room.take(tensor.dtype, tensor.shape)
            _assemble(name, tensor, memory)
        stored, dtype, _ = stored_form(memory, name)
        tensors.append(Tensor(name, stored.data_ptr(), dtype, tuple(stored.shape), owner=memory))
    extras = _extras(what, types, world, rank == 0)
    extra_bytes = sum(map(len, extras.values()))
    with Client(job, tensors, rank=rank, world=world, run_id=run_id or uuid.uuid4().hex, slots=2,
                extra_bytes_max=max(1 << 20, 2 * extra_bytes), **client_options) as client:
        client.save(step, extras, wait_for_slot=timeout)
        client.wait(step, tier, timeout)
        version = client.latest(tier)
    if version is None:
        raise DataLossError(f"step {step} was saved but is not committed")
    return version
