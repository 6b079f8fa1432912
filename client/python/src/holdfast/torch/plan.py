"""Which rank saves which part of the tensors that several ranks hold. The ranks agree on it once, for
the life of the job's processes."""

from __future__ import annotations

import uuid
from typing import Any, Mapping

import torch.distributed as dist

from . import boxes as b
from .identity import of_rank
from .snapshot import Snapshot, Stored

__all__ = ["Plan", "agree", "agreed_run_id"]


class Plan:
    """The part of each tensor that this rank saves, and the name it is saved under.

    If a tensor appears after the ranks agreed on the plan, each holder saves all of it. Optimizer
    state is an exception: it is divided as its parameter is, also if it appears later.
    """

    def __init__(self, rank: int, boxes: Mapping[str, b.Box],
                 rows: dict[str, list[b.Part]]) -> None:
        self._rank = rank
        self._boxes = dict(boxes)  # of the tensors that the ranks tried to agree on
        self._rows = rows  # of the tensors that all their holders have

    def disagreed(self, stored: Stored) -> bool:
        """Whether some rank that should hold this tensor lacks it. Each rank then saves its own."""
        name, box = stored.leads.name, stored.leads.box
        return (name in self._boxes and name not in self._rows and self._boxes[name] == box
                and box.shape == box.global_shape)

    def qualifier(self, stored: Stored) -> str:
        """The suffix of the tensor's name in a version."""
        return of_rank(self._rank) if self.disagreed(stored) else stored.box.qualifier

    def parts(self, stored: Stored) -> list[b.Part] | None:
        """The rows that each holder saves. None: each saves all rows."""
        lead, box = stored.leads, stored.box
        rows = self._rows.get(lead.name)
        if rows is None or self._boxes[lead.name] != lead.box:
            return None
        if stored is lead:
            return rows
        if len(box.holders) == 1 or box.bytes <= b.EACH_BYTES_MAX:
            return None
        same = box.shape == lead.box.shape and box.holders == lead.box.holders
        return rows if same else b.even_rows(box)

    def rows(self, stored: Stored) -> b.Part | None:
        """The rows that this rank saves. None: all rows."""
        parts = self.parts(stored)
        return None if parts is None else parts[stored.box.holders.index(self._rank)]


def can_communicate(world: int) -> bool:
    """Whether the ranks of this world can communicate through torch.distributed."""
    return (world > 1 and dist.is_available() and dist.is_initialized()
            and dist.get_world_size() > 1)


def gather(mine: Any) -> list[Any]:
    """The value of each rank, by rank. All ranks call this together."""
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, mine)
    return everything


def agreed_run_id(world: int, group: dist.ProcessGroup | None = None) -> str | None:
    """A new run ID, the same on all ranks. None: the ranks cannot communicate, and so cannot agree
    on one."""
    if not can_communicate(world):
        return uuid.uuid4().hex if world == 1 else None
    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0 if group is None else dist.get_global_rank(group, 0),
                               group=group)
    return name[0]


def agree(snapshot: Snapshot, rank: int, world: int) -> Plan:
    """Makes the plan. All ranks call this together. It takes one all-gather of eight bytes per tensor."""
    boxes = {name: stored.box for name, stored in snapshot.stored.items()
             if stored.leads is stored and len(stored.box.holders) > 1}
    if not can_communicate(world):
        return Plan(rank, boxes, {})
    agreed = b.agreed_names(boxes, gather(b.hashes(boxes)))
    rows: dict[str, list[b.Part]] = {}
    for holders in {boxes[name].holders for name in agreed}:
        mine = [(name, box) for name, box in boxes.items()
                if name in agreed and box.holders == holders]
        rows.update(b.divide(mine, holders))
    return Plan(rank, boxes, rows)
