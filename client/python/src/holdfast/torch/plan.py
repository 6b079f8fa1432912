"""Who saves what of the tensors that several ranks hold: agreed once, kept for the life of the
job."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any, Mapping

import torch
import torch.distributed as dist

from ..errors import DataLossError
from . import boxes as b
from .snapshot import Snapshot

__all__ = ["Plan", "agree", "agreed_run_id", "check_replicas"]


class Plan:
    """Rows that this rank saves, by name. What came later than the plan is saved whole by each."""

    def __init__(self, boxes: Mapping[str, b.Box], rows: dict[str, b.Part]) -> None:
        self._boxes = dict(boxes)
        self._rows = rows

    def rows(self, snapshot: Snapshot) -> dict[str, b.Part]:
        return {name: self._rows[name] for name, box in snapshot.boxes.items()
                if name in self._rows and self._boxes[name] == box}


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
    """All ranks call this together. Groups whose members disagree on what they hold are left
    alone."""
    boxes = snapshot.boxes
    if not talking(world):
        return Plan(boxes, {})
    agreed = b.agreed_groups(gather(b.digests(boxes)))
    rows: dict[str, b.Part] = {}
    for holders in agreed:
        if rank not in holders:
            continue
        mine = [(name, box) for name, box in boxes.items() if box.holders == holders]
        place = holders.index(rank)
        rows.update((name, parts[place]) for name, parts in b.divide(mine, holders).items())
    return Plan(boxes, rows)


def _hash(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(memoryview(flat.numpy()), digest_size=16).hexdigest()


def check_replicas(snapshot: Snapshot, rank: int, world: int) -> None:
    """Compares over ranks what several ranks hold; all ranks call this together.

    Raises:
        DataLossError: on all ranks, naming tensors and the ranks that differ from the others.
    """
    if not talking(world):
        return
    mine = {name: (stored.box.holders, stored.box.offset, _hash(stored.live))
            for name, stored in snapshot.stored.items()
            if len(stored.box.holders) > 1 and stored.leaf.replicated}
    found: dict[tuple, dict[str, list[int]]] = {}
    for member, said in enumerate(gather(mine)):
        for name, (holders, offset, digest) in said.items():
            found.setdefault((name, holders, offset), {}).setdefault(digest, []).append(member)
    lines = []
    for (name, holders, _), by_digest in sorted(found.items()):
        if len(by_digest) > 1:
            camps = sorted(by_digest.values(), key=lambda camp: (-len(camp), camp))
            if len(camps[0]) > len(holders) // 2:
                odd = sorted(member for camp in camps[1:] for member in camp)
                lines.append(f"'{name}' of rank {', '.join(map(str, odd))} differs from what "
                             f"{len(camps[0])} other ranks hold")
            else:
                lines.append(f"'{name}' differs between ranks {', '.join(map(str, holders))}")
    if lines:
        more = f" (and {len(lines) - 8} more)" if len(lines) > 8 else ""
        raise DataLossError("replicas are not equal, nothing was saved: "
                            + "; ".join(lines[:8]) + more)
