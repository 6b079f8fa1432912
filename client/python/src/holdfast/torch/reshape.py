"""What becomes of tensors that ranks saved for themselves when there is another number of ranks."""

from __future__ import annotations

from typing import Iterable, Mapping

from ..errors import InvalidArgumentError
from .identity import split

__all__ = ["ACTIONS", "Decisions"]

#: first: the lowest rank's; mean: of all ranks' values; zero: zeros; drop: the state's own stays.
ACTIONS = ("first", "mean", "zero", "drop")


class Decisions:
    """The caller's, by entry of the state or the beginning of a tensor's name up to a dot."""

    def __init__(self, on_reshape: Mapping[str, str] | None, entries: Iterable[str]) -> None:
        self._by_name = dict(on_reshape or {})
        entries = set(entries)
        for name, action in self._by_name.items():
            if action not in ACTIONS:
                raise InvalidArgumentError(f"on_reshape['{name}'] is {action!r}: it can be "
                                           f"{', '.join(map(repr, ACTIONS))}")
            if name.partition(".")[0] not in entries:
                raise InvalidArgumentError(f"on_reshape['{name}']: the state has no entry "
                                           f"'{name.partition('.')[0]}'")

    def of(self, name: str) -> str | None:
        """What is said of a tensor; the longest name counts."""
        while name:
            if name in self._by_name:
                return self._by_name[name]
            name = name.rpartition(".")[0]
        return None


def in_order(found: Mapping[str, str]) -> list[str]:
    """The tensors that ranks have kept apart, the lowest rank's first."""
    return [saved for _, saved in sorted(found.items(), key=lambda item: split(item[0]).rank)]


def undecided(names: Iterable[str], saved_by: int, world: int) -> list[str]:
    """One sentence for each entry of the state."""
    by_entry: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        by_entry.setdefault(name.partition(".")[0], []).append(name)
    lines = []
    for entry, members in by_entry.items():
        more = f" and {len(members) - 8} more" if len(members) > 8 else ""
        shown = ", ".join(f"'{name}'" for name in members[:8])
        lines.append(
            f"{shown}{more}: each of {saved_by} ranks saved its own, and the state of "
            f"{world} ranks has no such division; say what becomes of them, "
            f"Checkpointer(on_reshape={{'{entry}': 'first' | 'mean' | 'zero' | 'drop'}}), and "
            f"declare with hf.replicated() what is equal on all ranks")
    return lines
