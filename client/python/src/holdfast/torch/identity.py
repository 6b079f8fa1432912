"""Which tensors of several ranks are replicas of one tensor, and their names in a version.

A known replica has one name for all ranks. The name of a rank-local tensor is followed by
`@rank<rank>`. The name of a tensor that only a group of ranks shares is followed by
`@group<lowest rank>`. Different tensors of equal names therefore do not collide in a version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InvalidArgumentError

__all__ = ["Replicated", "SAMPLES", "SavedName", "check_unqualified", "of_group", "of_rank",
           "replicated", "split"]

#: Prefix of the names of tensors that hold samples of other ranks' parts. They are never restored, and
#: no entry of a state can have this name.
SAMPLES = "<samples>"
_QUALIFIED = re.compile(r"(?s)(.*)(@(rank|group)(\d{1,9}))")


class SavedName(NamedTuple):
    """The name of a tensor in a version, split into its parts."""

    name: str
    qualifier: str  # "" for a tensor of all ranks
    kind: str  # "", "rank" or "group"
    rank: int  # the rank, or the lowest of the group


def of_rank(rank: int) -> str:
    """The qualifier of a rank-local tensor."""
    return f"@rank{rank}"


def of_group(lowest_rank: int) -> str:
    """The qualifier of a tensor that only the ranks of a group share."""
    return f"@group{lowest_rank}"


def split(saved: str) -> SavedName:
    found = _QUALIFIED.fullmatch(saved)
    if found is None:
        return SavedName(saved, "", "", -1)
    return SavedName(found[1], found[2], found[3], int(found[4]))


def check_unqualified(name: str) -> None:
    """Raises InvalidArgumentError for a name in a state that ends like a qualifier."""
    if "@" in name and split(name).kind:
        raise InvalidArgumentError(f"'{name}': the name of a tensor cannot end with "
                                   f"'{split(name).qualifier}', which marks rank-local tensors: "
                                   f"rename it")


@dataclass(frozen=True)
class Replicated:
    """An entry of the state that the caller declares to be equal on all ranks."""

    thing: Any


def replicated(thing: Any) -> Replicated:
    """Declares an entry of the state to be equal on all ranks, bit for bit, at each save.

        hf.Checkpointer("job", {"model": hf.replicated(model), "ema": hf.replicated({"w": w})})

    Each rank then saves a part of it, and any number of ranks can restore it. Replicas of DTensor
    and DistributedDataParallel are known without a declaration. Every other tensor is rank-local:
    each rank saves its own, completely.

    Args:
        thing: a module, an optimizer, a tensor, a dictionary, or an object with state_dict() and
            load_state_dict().
    """
    return thing if isinstance(thing, Replicated) else Replicated(thing)
