"""Samples of tensor replicas, which show agents and the coordinator that values of ranks differ.

Each rank saves a part of a tensor that several ranks hold. Each save of a rank also has copies of a
sample of the parts that other ranks save, and an extra that maps bytes of the image to bytes of
tensors. The sample changes from save to save. The agents compute checksums of these bytes, and the
coordinator compares them when the version is committed. All ranks take the samples in the same
order, so every byte is compared once in as many saves as there are samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ..tensors import Device, DType, Tensor
from .identity import SAMPLES, of_rank
from .snapshot import Snapshot, Stored
from .values import dumps

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["EXTRA", "EXTRA_BYTES_MAX", "ReplicaSamples", "Rotation"]

EXTRA = "holdfast.samples"
#: An agent ignores a longer list. Ranges that do not fit are not compared.
EXTRA_BYTES_MAX = 256 << 10
#: Bytes of one sample of the tensors of a group of ranks. save() waits 0.5 to 3 ms for the copy of
#: host memory; device memory is copied on its stream.
_BYTES_MIN, _HOST_BYTES_MAX, _DEVICE_BYTES_MAX = 4 << 10, 4 << 20, 16 << 20
#: A sample is about 1/32 of the bytes that each rank of the group saves …
_SAMPLES_PER_RANK = 32
#: … but no state is cut into more samples than this, for any number of ranks.
_SAMPLES_MAX = 512
#: Ranges of tensors in one sample. An agent accepts 512 per image.
_RANGES_MAX = 64


class Rotation:
    """The number of the sample that the next save takes. It is the same on all ranks, since all save
    the same steps.

    If the steps are regularly spaced and a rank skips some of them, its number agrees with that of
    the others again at its next save.
    """

    def __init__(self) -> None:
        self.number = 0
        self._step = self._gap = 0
        self._regular = False

    def advance(self, step: int) -> None:
        gap = step - self._step
        skipped = gap // self._gap - 1 if self._regular and gap > 0 and gap % self._gap == 0 else 0
        self.number += 1 + skipped
        self._step, self._gap, self._regular = step, gap, 0 < gap == self._gap


class _Range(NamedTuple):
    """Bytes [first, last) of a tensor."""

    stored: Stored
    mine: bool  # whether this rank saves them
    saved_from: int  # where the part begins that their saving rank saves
    first: int
    last: int

    @property
    def bytes(self) -> int:
        return self.last - self.first


class ReplicaSamples:
    """The samples of a described state.

    Attributes:
        tensor: the description of the memory for the copies. None: no rank needs to copy anything.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, rank: int) -> None:
        self._qualifiers = {name: plan.qualifier(stored)
                            for name, stored in snapshot.stored.items()}
        groups: dict[tuple[int, ...], list[_Range]] = {}
        for name in sorted(snapshot.stored):
            stored = snapshot.stored[name]
            groups.setdefault(stored.box.holders, []).extend(_ranges(stored, plan, rank))
        most = _DEVICE_BYTES_MAX if snapshot.on_device else _HOST_BYTES_MAX
        #: The samples of each group of ranks that hold the same tensors.
        self._samples = [_cut(ranges, len(holders), most)
                         for holders, ranges in groups.items() if ranges]
        copied = sum(max(sum(r.bytes for r in sample if not r.mine) for sample in samples)
                     for samples in self._samples)
        self._memory: torch.Tensor | None = None
        self.tensor: Tensor | None = None
        if copied > 0:
            device = "cuda" if snapshot.on_device else "cpu"
            self._memory = torch.empty(copied, dtype=torch.uint8, device=device)
            self.tensor = Tensor(SAMPLES + of_rank(rank), self._memory.data_ptr(), DType.U8,
                                 (copied,), (copied,), (0,),
                                 Device.CUDA if snapshot.on_device else Device.HOST,
                                 self._memory.device.index or 0, self._memory)

    @property
    def count(self) -> int:
        """The number of saves after which every byte was compared once. 0: there are no replicas."""
        return max(map(len, self._samples), default=0)

    def take(self, number: int) -> bytes:
        """Copies the sample of this number. Returns the list of its ranges. The copies of the
        previous save must be done."""
        listed, at, room = [], 0, EXTRA_BYTES_MAX
        for r in (r for samples in self._samples for r in samples[number % len(samples)]):
            name, box = r.stored.name, r.stored.box
            where = "" if box.shape == box.global_shape else f" from {list(box.offset)}"
            entry = [f"'{name}{self._qualifiers[name]}'{where}", r.first, r.bytes]
            if r.mine:
                entry += name + self._qualifiers[name], r.first - r.saved_from
            else:
                assert self._memory is not None and self.tensor is not None
                self._memory[at:at + r.bytes].copy_(_bytes(r.stored)[r.first:r.last])
                entry += self.tensor.name, at
                at += r.bytes
            listed.append(dumps(entry))
            room -= len(listed[-1]) + 2
            if room < 0:
                listed.pop()
                break
        return b"[" + b",".join(listed) + b"]"


def _bytes(stored: Stored) -> torch.Tensor:
    return stored.memory.reshape(-1).view(torch.uint8)


def _ranges(stored: Stored, plan: Plan, rank: int) -> list[_Range]:
    box = stored.box
    if len(box.holders) < 2 or not box.cuttable or not stored.leads.box.cuttable \
            or box.bytes == 0 or plan.disagreed(stored):
        return []
    parts = plan.parts(stored)
    if parts is None or all(part == parts[0] for part in parts):  # each rank saves all bytes
        return [_Range(stored, True, 0, 0, box.bytes)]
    return [_Range(stored, holder == rank, first * box.row_bytes, first * box.row_bytes,
                   last * box.row_bytes)
            for holder, (first, last) in zip(box.holders, parts) if last > first]


def _cut(ranges: list[_Range], holders: int, most: int) -> list[list[_Range]]:
    """Cuts the ranges into samples, at the same places on all ranks that hold the same tensors."""
    count = min(_SAMPLES_PER_RANK * holders, _SAMPLES_MAX)
    most = min(max(-(-sum(r.bytes for r in ranges) // count), _BYTES_MIN), most)
    samples: list[list[_Range]] = []
    room = 0
    for r in ranges:
        first = r.first
        while first < r.last:
            if room == 0 or len(samples[-1]) == _RANGES_MAX:
                samples.append([])
                room = most
            last = min(r.last, first + room)
            complete = last - first == r.bytes
            samples[-1].append(r if complete else r._replace(first=first, last=last))
            room -= last - first
            first = last
    return samples
