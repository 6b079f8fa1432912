"""Samples of replicas, by which agents and the coordinator notice ranks whose values differ.

Of a tensor that several ranks hold each rank saves a part. Each save of a rank also holds copies of
a sample of what the other ranks save, another sample each time, and an extra that lists which bytes
of the image are which bytes of which tensor. The agents take checksums of these bytes, and the
coordinator compares them when the version is committed. All ranks go through the samples in the
same order, so every byte is compared once in as many saves as there are samples.
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
#: What does not fit is not compared; an agent ignores a longer list.
EXTRA_BYTES_MAX = 256 << 10
#: Bytes of one sample of what a group of ranks holds. save() waits for the copy of host memory, 0.5
#: to 3 ms; device memory is copied on its stream.
_BYTES_MIN, _HOST_BYTES_MAX, _DEVICE_BYTES_MAX = 4 << 10, 4 << 20, 16 << 20
#: A sample is about this part of what each rank of the group saves …
_SAMPLES_PER_RANK = 32
#: … but no state is cut into more samples than this, however many ranks there are.
_SAMPLES_MAX = 512
#: Ranges of tensors in one sample; an agent takes 512 from one image.
_RANGES_MAX = 64


class Rotation:
    """Which sample the next save takes: the same on all ranks, since they all save the same steps.

    A rank that leaves out some of steps that come regularly is with the others again at the next.
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
    mine: bool  # this rank saves them
    saved_from: int  # the first byte of the part that the rank that saves them saves
    first: int
    last: int

    @property
    def bytes(self) -> int:
        return self.last - self.first


class ReplicaSamples:
    """What is sampled of a state as it is described.

    Attributes:
        tensor: the description of the memory for the copies; None: nothing has to be copied.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, rank: int) -> None:
        self._qualifiers = {name: plan.qualifier(stored)
                            for name, stored in snapshot.stored.items()}
        groups: dict[tuple[int, ...], list[_Range]] = {}
        for name in sorted(snapshot.stored):
            stored = snapshot.stored[name]
            groups.setdefault(stored.box.holders, []).extend(_ranges(stored, plan, rank))
        #: The samples of each group of ranks that hold the same.
        most = _DEVICE_BYTES_MAX if snapshot.on_device else _HOST_BYTES_MAX
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
        """Saves after which every byte was compared once; 0: there are no replicas."""
        return max(map(len, self._samples), default=0)

    def take(self, number: int) -> bytes:
        """Copies the sample with this number, and lists what it consists of. The copies of the save
        before must be done."""
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
    if parts is None or all(part == parts[0] for part in parts):  # each rank saves all of it
        return [_Range(stored, True, 0, 0, box.bytes)]
    return [_Range(stored, holder == rank, first * box.row_bytes, first * box.row_bytes,
                   last * box.row_bytes)
            for holder, (first, last) in zip(box.holders, parts) if last > first]


def _cut(ranges: list[_Range], holders: int, most: int) -> list[list[_Range]]:
    """Samples, cut at the same places on all ranks that hold the same tensors."""
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
            whole = last - first == r.bytes
            samples[-1].append(r if whole else r._replace(first=first, last=last))
            room -= last - first
            first = last
    return samples
