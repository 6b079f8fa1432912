"""Which tensors of several ranks are one tensor, and the names under which a version keeps them.

A known replica has one name for all ranks. What only one rank has is stored under its name and
`@rank<rank>`, and what only the ranks of a group share under its name and `@group<lowest rank>`:
so equal names of different tensors never meet in a version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InvalidArgumentError

__all__ = ["Replicated", "SAMPLES", "SavedName", "check_unqualified", "of_group", "of_rank",
           "replicated", "split"]

#: How names of tensors begin that are copies of what other ranks save; nothing is restored from them,
#: and no entry of a state is called so.
SAMPLES = "<samples>"
_QUALIFIED = re.compile(r"(?s)(.*)(@(rank|group)(\d{1,9}))")


class SavedName(NamedTuple):
    """The name of a tensor in a version, taken apart."""

    name: str
    qualifier: str  # "" for a tensor of all ranks
    kind: str  # "", "rank" or "group"
    rank: int  # the rank, or the lowest of the group


def of_rank(rank: int) -> str:
    """The qualifier of what only this rank has."""
    return f"@rank{rank}"


def of_group(lowest_rank: int) -> str:
    """The qualifier of what only the ranks of a group share."""
    return f"@group{lowest_rank}"


def split(saved: str) -> SavedName:
    found = _QUALIFIED.fullmatch(saved)
    if found is None:
        return SavedName(saved, "", "", -1)
    return SavedName(found[1], found[2], found[3], int(found[4]))


def check_unqualified(name: str) -> None:
    """Raises InvalidArgumentError for names of a state that end as a qualifier does."""
    if "@" in name and split(name).kind:
        raise InvalidArgumentError(f"'{name}': a name of a tensor does not end with "
                                   f"'{split(name).qualifier}', which marks what ranks keep apart")


@dataclass(frozen=True)
class Replicated:
    """An entry of the state that the caller declares to be equal on all ranks."""

    thing: Any


def replicated(thing: Any) -> Replicated:
    """Declares an entry of the state to be equal on all ranks, bit for bit, at each save.

        hf.Checkpointer("job", {"model": hf.replicated(model), "ema": hf.replicated({"w": w})})

    Each rank then saves a part of it, and any number of ranks can restore it. What is not declared,
    and not known to be a replica (DTensor says so, and DistributedDataParallel), each rank saves
    whole and for itself.

    Args:
        thing: a module, an optimizer, a tensor, a dictionary, or what has state_dict() and
            load_state_dict().
    """
    return thing if isinstance(thing, Replicated) else Replicated(thing)
