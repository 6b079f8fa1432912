"""Which box of which global tensor this rank holds, which ranks hold the same box, and which rank
saves which part of it.

A tensor that several ranks are known to hold is saved once. It is cut along its first dimension
larger than 1 into one box per rank, so that the ranks of a group write the same number of bytes.
Every rank saves all of the smallest tensors: it then restores them from its own shard, without
fetching chunks of other shards for a few bytes.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from math import prod
from typing import Any, Iterable, Mapping, Sequence

import torch

from ..errors import InvalidArgumentError, UnsupportedError
from ..tensors import DType
from .identity import of_group, of_rank

__all__ = ["Box", "Part", "agreed_names", "box_of", "divide", "even_rows", "hashes", "stored_form",
           "torch_dtype"]

#: Smaller tensors are not cut: one rank saves all of them.
CUT_BYTES_MIN = 16 << 10
#: Up to this size each holder saves all of the tensor, such as the step counter of an optimizer.
EACH_BYTES_MAX = 1 << 10

Part = tuple[int, int]  # rows of the box along the cut dimension: [first, last)

_DTYPES = {
    torch.bool: DType.BOOL, torch.uint8: DType.U8, torch.int8: DType.I8,
    torch.float8_e4m3fn: DType.F8_E4M3, torch.float8_e5m2: DType.F8_E5M2,
    torch.uint16: DType.U16, torch.int16: DType.I16, torch.float16: DType.F16,
    torch.bfloat16: DType.BF16, torch.uint32: DType.U32, torch.int32: DType.I32,
    torch.float32: DType.F32, torch.uint64: DType.U64, torch.int64: DType.I64,
    torch.float64: DType.F64, torch.complex64: DType.C64,
}


def torch_dtype(dtype: int) -> torch.dtype:
    """torch's data type for one of the stored types."""
    return next(theirs for theirs, ours in _DTYPES.items() if ours == dtype)


@dataclass(frozen=True)
class Box:
    """The part of a tensor that this rank holds, in its stored form."""

    dtype: DType
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    holders: tuple[int, ...]  # the ranks known to hold the same box, including this one
    cuttable: bool  # the holders have the same bytes at each save
    qualifier: str = ""  # suffix of the name in the version: see identity.py

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.bytes

    @property
    def cut_dimension(self) -> int | None:
        return next((d for d, extent in enumerate(self.shape) if extent > 1), None)

    @property
    def all_rows(self) -> tuple[int, int]:
        d = self.cut_dimension
        return 0, 1 if d is None else self.shape[d]

    @property
    def row_bytes(self) -> int:
        d = self.cut_dimension
        return self.bytes if d is None else self.bytes // self.shape[d]


def stored_form(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, DType, str | None]:
    """Returns the local tensor as a view of a type that can be stored, that type, and the name of
    the real type if it differs.

    complex128 and complex32 become pairs of numbers. Other types that cannot be stored become
    integers of the same bits.
    """
    if tensor.dtype in _DTYPES:
        return tensor, _DTYPES[tensor.dtype], None
    real = str(tensor.dtype)
    if tensor.dtype.is_complex:
        pairs = torch.view_as_real(tensor.resolve_conj())
        return pairs, _DTYPES[pairs.dtype], real
    bits = {1: torch.uint8, 2: torch.uint16, 4: torch.int32, 8: torch.int64}
    try:
        as_bits = tensor.view(bits[tensor.element_size()])
    except (KeyError, RuntimeError) as error:
        raise UnsupportedError(f"'{name}' has elements of type {real}, which cannot be "
                               f"saved") from error
    return as_bits, _DTYPES[as_bits.dtype], real


def _sharding(tensor: torch.Tensor, name: str, declared: bool) -> tuple[tuple[int, ...], ...]:
    """Returns (offset, holders, ranks of the mesh) of a DTensor's local part."""
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise UnsupportedError(f"'{name}' is a partial sum ({placements}): redistribute it before it is saved")
    if mesh.get_coordinate() is None:
        return (0,) * tensor.dim(), (), _ranks_of(mesh)
    shape, offset, holders, group = _placed(tensor.shape, mesh, placements, declared)
    local = tuple(tensor._local_tensor.shape)
    if shape != local:
        raise UnsupportedError(f"'{name}' is placed as {placements}, but its part here is {local} "
                               f"and not {shape}")
    return offset, holders, group


def _ranks_of(mesh: Any) -> tuple[int, ...]:
    return tuple(sorted(mesh.mesh.flatten().tolist()))


@functools.lru_cache(maxsize=256)
def _placed(shape: torch.Size, mesh: Any, placements: tuple,
            declared: bool) -> tuple[tuple[int, ...], ...]:
    """Returns shape and offset of this rank's part, the ranks that hold it, and the ranks of the
    mesh. Cached, since the result is the same for many tensors."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    part, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(part), tuple(offset), _holders(mesh, placements, declared), _ranks_of(mesh)


def _holders(mesh: Any, placements: Sequence[Any], declared: bool) -> tuple[int, ...]:
    """Returns the ranks that hold the same shard: those along the replicated dimensions of `mesh`.

    If the caller declares the tensor to be replicated, the dimensions of the root mesh that `mesh`
    lacks count as well, for example where data-parallel sharding meets tensor parallelism.
    """
    from torch.distributed.tensor import Replicate
    replicated = [isinstance(placement, Replicate) for placement in placements]
    root = mesh._get_root_mesh() if declared and hasattr(mesh, "_get_root_mesh") else mesh
    names, all_names = mesh.mesh_dim_names, root.mesh_dim_names
    coordinate = root.get_coordinate()
    if root is not mesh and names and all_names and coordinate and set(names) <= set(all_names):
        sharded = {name for name, same in zip(names, replicated) if not same}
        free = [name not in sharded for name in all_names]
    else:
        root, coordinate, free = mesh, mesh.get_coordinate(), replicated
    index = tuple(slice(None) if any_place else place
                  for any_place, place in zip(free, coordinate))
    return tuple(sorted(root.mesh[index].flatten().tolist()))


def _qualifier(group: tuple[int, ...], world: int) -> str:
    if len(group) == world:
        return ""
    return of_rank(group[0]) if len(group) == 1 else of_group(group[0])


def box_of(tensor: torch.Tensor, name: str, rank: int, world: int, *, cuttable: bool = True,
           group: tuple[int, ...] = (), declared: bool = False) -> Box:
    """Returns the box of a tensor: all of a plain tensor, the local shard of a DTensor.

    Args:
        cuttable: the holders have the same bytes at each save.
        group: for a plain tensor, the ranks known to hold it, in ascending order. (): this rank only.
        declared: the caller declared that all ranks share the tensor.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    if local is tensor:
        global_shape, offset = tuple(tensor.shape), (0,) * tensor.dim()
        holders = group = tuple(range(world)) if declared else group or (rank,)
    else:
        global_shape = tuple(tensor.shape)
        offset, holders, group = _sharding(tensor, name, declared)
    if 0 in global_shape:
        # An empty tensor has no place. Its description records that the tensor exists.
        offset = (0,) * len(global_shape)
    stored, dtype, _ = stored_form(local.detach(), name)
    extra = tuple(stored.shape[local.dim():])
    if rank not in holders:
        holders = (rank,)
    return Box(dtype, tuple(stored.shape), global_shape + extra, tuple(offset) + (0,) * len(extra),
               holders, cuttable, "" if declared else _qualifier(group, world))


def _hash(name: str, box: Box) -> bytes:
    text = f"{name!r} {box.dtype} {box.shape} {box.global_shape} {box.offset} {box.cuttable}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def hashes(boxes: Mapping[str, Box]) -> dict[tuple[int, ...], bytes]:
    """What each group of ranks holds according to this rank: eight bytes per tensor, sorted."""
    groups: dict[tuple[int, ...], list[bytes]] = {}
    for name, box in boxes.items():
        if len(box.holders) > 1:
            groups.setdefault(box.holders, []).append(_hash(name, box))
    return {holders: b"".join(sorted(found)) for holders, found in groups.items()}


def agreed_names(boxes: Mapping[str, Box],
                 of_ranks: Sequence[Mapping[tuple[int, ...], bytes]]) -> set[str]:
    """The tensors on whose holders all these holders agree. `of_ranks` has the hashes() of each
    rank."""
    def common(holders: tuple[int, ...]) -> set[bytes]:
        found = {of_ranks[member].get(holders, b"") for member in holders}
        return set.intersection(*({joined[i:i + 8] for i in range(0, len(joined), 8)}
                                  for joined in found))

    agreed = {holders: common(holders)
              for holders in {box.holders for box in boxes.values() if len(box.holders) > 1}}
    return {name for name, box in boxes.items()
            if len(box.holders) > 1 and _hash(name, box) in agreed[box.holders]}


def even_rows(box: Box) -> list[Part]:
    """The rows of each holder, divided as evenly as possible."""
    rows = 1 if box.cut_dimension is None else box.shape[box.cut_dimension]
    count = len(box.holders)
    return [(rows * i // count, rows * (i + 1) // count) for i in range(count)]


def _levelled(loads: Sequence[int], total: int) -> list[float]:
    """Divides `total` so that the loads become as equal as possible. Returns the share of each."""
    order = sorted(loads)
    filled, level = 0, float(order[0])
    for count, load in enumerate(order[1:] + [None], start=1):
        room = None if load is None else (load - level) * count
        if room is None or filled + room >= total:
            level += (total - filled) / count
            break
        filled, level = filled + room, float(load)
    return [max(0.0, level - load) for load in loads]


def _cut(box: Box, loads: list[int]) -> list[Part]:
    rows = box.shape[box.cut_dimension]  # type: ignore[index]
    parts, before, done = [], 0.0, 0
    for share in _levelled(loads, box.bytes):
        before += share
        last = min(rows, max(done, round(before / box.row_bytes)))
        parts.append((done, last))
        done = last
    # Rounding may leave rows over: the last holder with a share takes them.
    taker = max(i for i, (first, last) in enumerate(parts) if last > first or i == 0)
    parts[taker] = (parts[taker][0], rows)
    return [(first, last) if i <= taker else (rows, rows)
            for i, (first, last) in enumerate(parts)]


def divide(boxes: Iterable[tuple[str, Box]], holders: tuple[int, ...]) -> dict[str, list[Part]]:
    """Returns which rows of each tensor each rank of a group saves, by index in the group.

    All ranks of the group call this with the same boxes and get the same result. Tensors that
    cannot be cut come first, then those with large rows, then those with small rows. The small rows
    balance the remaining differences in load.
    """
    def cut(box: Box) -> bool:
        return box.cuttable and box.bytes >= CUT_BYTES_MIN and box.cut_dimension is not None

    loads = [0] * len(holders)
    result: dict[str, list[Part]] = {}
    for name, box in sorted(boxes, key=lambda e: (cut(e[1]), -e[1].row_bytes, e[0])):
        if box.holders != holders:
            raise InvalidArgumentError(f"'{name}' is held by ranks {box.holders}, not by {holders}")
        all_rows = box.all_rows
        if cut(box):
            parts = _cut(box, loads)
        elif box.cuttable and box.bytes <= EACH_BYTES_MAX:
            parts = [all_rows] * len(holders)
        else:
            # Values may differ between ranks (buffers of a module): those of the first rank count.
            taker = loads.index(min(loads)) if box.cuttable else 0
            parts = [all_rows if i == taker else (0, 0) for i in range(len(holders))]
        for i, (first, last) in enumerate(parts):
            loads[i] += (last - first) * box.row_bytes
        result[name] = parts
    return result
