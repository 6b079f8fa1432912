"""Which box of which whole a tensor of this rank is, who else holds that box, and who saves what of
it.

A tensor that several ranks are known to hold is saved once: it is cut along its first dimension
larger than 1, a box a rank, so that the ranks of a group write the same number of bytes. Each saves
the smallest whole: then each finds them in its own shard, and need not ask others for a chunk for
some bytes.
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

#: Smaller ones are not cut: a rank saves them whole.
CUT_BYTES_MIN = 16 << 10
#: Up to this size each of the holders saves it, such as the number of steps of an optimizer.
EACH_BYTES_MAX = 1 << 10

Part = tuple[int, int]  # rows of the box, along the dimension that is cut: [first, last)

_DTYPES = {
    torch.bool: DType.BOOL, torch.uint8: DType.U8, torch.int8: DType.I8,
    torch.float8_e4m3fn: DType.F8_E4M3, torch.float8_e5m2: DType.F8_E5M2,
    torch.uint16: DType.U16, torch.int16: DType.I16, torch.float16: DType.F16,
    torch.bfloat16: DType.BF16, torch.uint32: DType.U32, torch.int32: DType.I32,
    torch.float32: DType.F32, torch.uint64: DType.U64, torch.int64: DType.I64,
    torch.float64: DType.F64, torch.complex64: DType.C64,
}


def torch_dtype(dtype: int) -> torch.dtype:
    """torch's name of a type of elements."""
    return next(theirs for theirs, ours in _DTYPES.items() if ours == dtype)


@dataclass(frozen=True)
class Box:
    """What this rank holds of a tensor, in the form in which it is stored."""

    dtype: DType
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    holders: tuple[int, ...]  # the ranks known to hold the same box, this one among them
    cuttable: bool  # they hold the same bytes at each save
    qualifier: str = ""  # of the name in the version: see identity.py

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.bytes

    @property
    def cut_dimension(self) -> int | None:
        return next((d for d, extent in enumerate(self.shape) if extent > 1), None)

    @property
    def row_bytes(self) -> int:
        d = self.cut_dimension
        return self.bytes if d is None else self.bytes // self.shape[d]


def stored_form(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, DType, str | None]:
    """A view of a local tensor whose type has a name, and the real type where it is another.

    complex128 and complex32 become pairs of numbers, types that have no name here their bits.
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
    """(offset, holders, ranks that share the whole) of a DTensor's local part."""
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise UnsupportedError(f"'{name}' is a partial sum ({placements}): redistribute it first")
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
    """Shape and offset of this rank's part, who holds it, who shares the whole: the same for many
    tensors."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    part, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(part), tuple(offset), _holders(mesh, placements, declared), _ranks_of(mesh)


def _holders(mesh: Any, placements: Sequence[Any], declared: bool) -> tuple[int, ...]:
    """The ranks that hold the same shard: along the dimensions that are replicated, and, where the
    caller declares that, along those of the whole mesh of which `mesh` is a part, as where
    data-parallel shards meet tensor parallelism."""
    from torch.distributed.tensor import Replicate
    replicated = [isinstance(placement, Replicate) for placement in placements]
    whole = mesh._get_root_mesh() if declared and hasattr(mesh, "_get_root_mesh") else mesh
    names, all_names = mesh.mesh_dim_names, whole.mesh_dim_names
    coordinate = whole.get_coordinate()
    if whole is not mesh and names and all_names and coordinate and set(names) <= set(all_names):
        sharded = {name for name, same in zip(names, replicated) if not same}
        free = [name not in sharded for name in all_names]
    else:
        whole, coordinate, free = mesh, mesh.get_coordinate(), replicated
    index = tuple(slice(None) if any_place else place
                  for any_place, place in zip(free, coordinate))
    return tuple(sorted(whole.mesh[index].flatten().tolist()))


def _qualifier(group: tuple[int, ...], world: int) -> str:
    if len(group) == world:
        return ""
    return of_rank(group[0]) if len(group) == 1 else of_group(group[0])


def box_of(tensor: torch.Tensor, name: str, rank: int, world: int, *, cuttable: bool = True,
           group: tuple[int, ...] = (), declared: bool = False) -> Box:
    """The box of a plain tensor is all of it; that of a DTensor is its shard's.

    Args:
        cuttable: its holders hold the same bytes at each save.
        group: of a plain tensor, the ranks known to hold it, in order; (): this one alone.
        declared: the caller says that all ranks share it.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    if local is tensor:
        global_shape, offset = tuple(tensor.shape), (0,) * tensor.dim()
        holders = group = tuple(range(world)) if declared else group or (rank,)
    else:
        global_shape = tuple(tensor.shape)
        offset, holders, group = _sharding(tensor, name, declared)
    if 0 in global_shape:
        # Nothing to place: one rank says that there is such a tensor.
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
    """What this rank takes each group of ranks to hold: eight bytes a tensor, in order."""
    groups: dict[tuple[int, ...], list[bytes]] = {}
    for name, box in boxes.items():
        if len(box.holders) > 1:
            groups.setdefault(box.holders, []).append(_hash(name, box))
    return {holders: b"".join(sorted(found)) for holders, found in groups.items()}


def agreed_names(boxes: Mapping[str, Box],
                 of_ranks: Sequence[Mapping[tuple[int, ...], bytes]]) -> set[str]:
    """The tensors that all their holders take to be held by just these. `of_ranks`: hashes() of
    each rank."""
    def common(holders: tuple[int, ...]) -> set[bytes]:
        found = {of_ranks[member].get(holders, b"") for member in holders}
        return set.intersection(*({joined[i:i + 8] for i in range(0, len(joined), 8)}
                                  for joined in found))

    agreed = {holders: common(holders)
              for holders in {box.holders for box in boxes.values() if len(box.holders) > 1}}
    return {name for name, box in boxes.items()
            if len(box.holders) > 1 and _hash(name, box) in agreed[box.holders]}


def even_rows(box: Box) -> list[Part]:
    """Rows of each of the holders, as many as can be."""
    rows = 1 if box.cut_dimension is None else box.shape[box.cut_dimension]
    count = len(box.holders)
    return [(rows * i // count, rows * (i + 1) // count) for i in range(count)]


def _levelled(loads: Sequence[int], total: int) -> list[float]:
    """`total` shared out so that the loads become as equal as they can."""
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
    # Rounding: the last with a share takes what is left.
    taker = max(i for i, (first, last) in enumerate(parts) if last > first or i == 0)
    parts[taker] = (parts[taker][0], rows)
    return [(first, last) if i <= taker else (rows, rows)
            for i, (first, last) in enumerate(parts)]


def divide(boxes: Iterable[tuple[str, Box]], holders: tuple[int, ...]) -> dict[str, list[Part]]:
    """Who of a group saves which rows of each of its tensors, by place in the group.

    All members call this with the same boxes and get the same answer. What cannot be cut comes
    first, then coarse rows, then fine ones, which even out what is left.
    """
    def cut(box: Box) -> bool:
        return box.cuttable and box.bytes >= CUT_BYTES_MIN and box.cut_dimension is not None

    loads = [0] * len(holders)
    result: dict[str, list[Part]] = {}
    for name, box in sorted(boxes, key=lambda e: (cut(e[1]), -e[1].row_bytes, e[0])):
        if box.holders != holders:
            raise InvalidArgumentError(f"'{name}' is held by {box.holders}, not by {holders}")
        d = box.cut_dimension
        all_rows = (0, 1 if d is None else box.shape[d])
        if cut(box):
            parts = _cut(box, loads)
        elif box.cuttable and box.bytes <= EACH_BYTES_MAX:
            parts = [all_rows] * len(holders)
        else:
            # What may differ between ranks (buffers of a module) is the first one's to say.
            taker = loads.index(min(loads)) if box.cuttable else 0
            parts = [all_rows if i == taker else (0, 0) for i in range(len(holders))]
        for i, (first, last) in enumerate(parts):
            loads[i] += (last - first) * box.row_bytes
        result[name] = parts
    return result
