"""Who saves what of the tensors that several ranks hold: agreed once, kept for the life of the
job."""

from __future__ import annotations

import uuid
from typing import Any, Mapping

import torch.distributed as dist

from . import boxes as b
from .identity import of_rank
from .snapshot import Snapshot, Stored

__all__ = ["Plan", "agree", "agreed_run_id"]


class Plan:
    """What this rank saves of each tensor, and under which name.

    A tensor that came later than the plan is saved whole by each of its holders; but the state that
    an optimizer keeps for a parameter is cut as the parameter is, whenever it comes.
    """

    def __init__(self, rank: int, boxes: Mapping[str, b.Box],
                 rows: dict[str, list[b.Part]]) -> None:
        self._rank = rank
        self._boxes = dict(boxes)  # of those that were asked for
        self._rows = rows  # of those that all holders have

    def disagreed(self, stored: Stored) -> bool:
        """Not all that should hold this tensor have it: each keeps its own."""
        name, box = stored.leads.name, stored.leads.box
        return (name in self._boxes and name not in self._rows and self._boxes[name] == box
                and box.shape == box.global_shape)

    def qualifier(self, stored: Stored) -> str:
        """What the tensor's name ends with in a version."""
        return of_rank(self._rank) if self.disagreed(stored) else stored.box.qualifier

    def parts(self, stored: Stored) -> list[b.Part] | None:
        """The rows of each holder; None: each saves all."""
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
        """This rank's rows; None: all of them."""
        parts = self.parts(stored)
        return None if parts is None else parts[stored.box.holders.index(self._rank)]


def talking(world: int) -> bool:
    """Whether the ranks of this world can ask each other."""
    return (world > 1 and dist.is_available() and dist.is_initialized()
            and dist.get_world_size() > 1)


def gather(mine: Any) -> list[Any]:
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, mine)
    return everything


def agreed_run_id(world: int, group: dist.ProcessGroup | None = None) -> str | None:
    """A new name for this start of the job, the same on all ranks; None: they cannot agree on
    one."""
    if not talking(world):
        return uuid.uuid4().hex if world == 1 else None
    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0 if group is None else dist.get_global_rank(group, 0),
                               group=group)
    return name[0]


def agree(snapshot: Snapshot, rank: int, world: int) -> Plan:
    """All ranks call this together; one exchange, of eight bytes a tensor."""
    boxes = {name: stored.box for name, stored in snapshot.stored.items()
             if stored.leads is stored and len(stored.box.holders) > 1}
    if not talking(world):
        return Plan(rank, boxes, {})
    agreed = b.agreed_names(boxes, gather(b.hashes(boxes)))
    rows: dict[str, list[b.Part]] = {}
    for holders in {boxes[name].holders for name in agreed}:
        mine = [(name, box) for name, box in boxes.items()
                if name in agreed and box.holders == holders]
        rows.update(b.divide(mine, holders))
    return Plan(rank, boxes, rows)
