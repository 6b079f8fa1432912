"""How rank-local tensors are restored into another number of ranks."""

from __future__ import annotations

from typing import Iterable, Mapping

from ..errors import InvalidArgumentError
from .identity import split

__all__ = ["ACTIONS", "Decisions"]

#: first: the lowest rank's values; mean: the mean of all ranks; zero: zeros; drop: left unchanged.
ACTIONS = ("first", "mean", "zero", "drop")


class Decisions:
    """The caller's on_reshape, by entry of the state or beginning of a tensor's name up to a dot."""

    def __init__(self, on_reshape: Mapping[str, str] | None, entries: Iterable[str]) -> None:
        self._by_name = dict(on_reshape or {})
        entries = set(entries)
        for name, action in self._by_name.items():
            if action not in ACTIONS:
                raise InvalidArgumentError(f"on_reshape['{name}'] is {action!r}: choose one of "
                                           f"{', '.join(map(repr, ACTIONS))}")
            if name.partition(".")[0] not in entries:
                raise InvalidArgumentError(f"on_reshape['{name}']: the state has no entry "
                                           f"'{name.partition('.')[0]}'")

    def of(self, name: str) -> str | None:
        """The action for a tensor. The longest matching name counts. None: there is no decision."""
        while name:
            if name in self._by_name:
                return self._by_name[name]
            name = name.rpartition(".")[0]
        return None


def in_order(found: Mapping[str, str]) -> list[str]:
    """The rank-local tensors of one name, ordered by rank."""
    return [saved for _, saved in sorted(found.items(), key=lambda item: split(item[0]).rank)]


def undecided(names: Iterable[str], saved_by: int, world: int) -> list[str]:
    """The error for tensors without a decision: one sentence for each entry of the state."""
    by_entry: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        by_entry.setdefault(name.partition(".")[0], []).append(name)
    lines = []
    for entry, members in by_entry.items():
        more = f" and {len(members) - 8} more" if len(members) > 8 else ""
        shown = ", ".join(f"'{name}'" for name in members[:8])
        lines.append(
            f"{shown}{more}: each of {saved_by} ranks saved its own, and the state of "
            f"{world} ranks cannot be restored from them without a decision: pass "
            f"Checkpointer(on_reshape={{'{entry}': 'first' | 'mean' | 'zero' | 'drop'}}), or "
            f"declare the entry with hf.replicated() if it is equal on all ranks")
    return lines
