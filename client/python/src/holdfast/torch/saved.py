"""A version as its ranks described it: which tensor of which rank is under which name."""

from __future__ import annotations

import functools
from typing import Any, Iterable, Iterator

from ..client import Piece, View
from ..errors import InvalidArgumentError
from . import values
from .boxes import torch_dtype
from .identity import SAMPLES, of_rank, split
from .optimizer_state import SavedTensor

__all__ = ["LAYOUT", "STATE", "Saved", "StateMismatchError", "local_tensors"]

LAYOUT, STATE = "torch.layout", "torch.state"


class StateMismatchError(InvalidArgumentError):
    """The state is not the one that the version has. `differences`: one sentence each."""

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        shown = "\n  ".join(differences[:20])
        more = f"\n  and {len(differences) - 20} more" if len(differences) > 20 else ""
        super().__init__(f"the version does not fit the state, nothing was restored; "
                         f"{len(differences)} differences:\n  {shown}{more}")


class Saved:
    """The tensors of a version by their names in the state, and what was saved beside them.

    Args:
        rank, world: the ranks that restore; in the world that saved it each finds its own values.
    """

    def __init__(self, view: View, rank: int, world: int) -> None:
        self.view, self.rank, self.world = view, rank, world
        self._extras = view.extras()
        self._values: dict[int, tuple[Any, Any]] = {}
        self.layout, self.state = self.values_of(rank % view.world)
        #: Releases that kept nothing apart wrote 1.
        self.keeps_apart = self.layout.get("format", 1) >= 2
        #: What this rank should have shared, but did not with all others.
        self.own: set[str] = set(self.layout.get("own", ()))
        #: Whose values those of this rank are.
        self.same_world = view.world == world
        self.pieces: dict[str, Piece] = {}
        #: Names of tensors by those of the state and their qualifiers.
        self._by_name: dict[str, dict[str, str]] = {}
        self._own: set[str] = set(self.layout.get("held", ()))
        for piece in view.pieces():
            if piece.rank == rank:
                self._own.add(piece.name)
            if piece.name not in self.pieces and not piece.name.startswith(SAMPLES):
                self.pieces[piece.name] = piece
                self._file(self._by_name, piece.name, piece.name)

    def _file(self, index: dict[str, dict[str, str]], name: str, target: str) -> None:
        plain, qualifier = split(name)[:2] if self.keeps_apart else (name, "")
        index.setdefault(plain, {})[qualifier] = target

    def values_of(self, rank: int) -> tuple[Any, Any]:
        """(layout, state) of a rank, as docs/formats/torch.md has them."""
        if rank not in self._values:
            self._values[rank] = self._decoded(rank)
        return self._values[rank]

    def _decoded(self, rank: int) -> tuple[Any, Any]:
        extras = self._extras.get(rank, {})
        if LAYOUT not in extras or STATE not in extras:
            raise StateMismatchError([f"version {self.view.version} was not saved by "
                                      f"holdfast.torch: it has no {LAYOUT}"])
        return values.loads(extras[LAYOUT]), values.loads(extras[STATE])

    def _layouts(self) -> Iterator[Any]:
        """Those that may say something of tensors that this rank wants."""
        yield self.layout
        if not self.same_world and self.keeps_apart:
            for rank in range(self.view.world):
                yield self.values_of(rank)[0]

    @functools.cached_property
    def types(self) -> dict[str, str]:
        return {name: kind for layout in self._layouts() for name, kind in layout["types"].items()}

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        return {name: target for layout in self._layouts()
                for name, target in layout["aliases"].items()}

    @functools.cached_property
    def _by_alias(self) -> dict[str, dict[str, str]]:
        index: dict[str, dict[str, str]] = {}
        for name, target in self.aliases.items():
            if target in self.pieces:
                self._file(index, name, target)
        return index

    def choices(self, names: Iterable[str]) -> dict[str, str]:
        """What the version has under the first of the names that it knows: by qualifier."""
        for name in names:
            found = self._by_name.get(name) or self._by_alias.get(name)
            if found:
                return found
        return {}

    def of_values(self, name: str, rank: int) -> str:
        """What a rank has called `name` in its values, as the version has it."""
        found = self.choices([name])
        return found.get(of_rank(rank)) or found.get("") or name

    def tensors(self) -> dict[str, SavedTensor]:
        """By their names in the state, those that this rank may want, as the program had them."""
        return {name: self._tensor(next(iter(found.values())))
                for name, found in self.others(set()).items()}

    def _tensor(self, name: str) -> SavedTensor:
        piece, real = self.pieces[name], self.types.get(name)
        shape = tuple(piece.global_shape)
        dtype = torch_dtype(piece.dtype) if real is None else values.dtype_of(real)
        # Such complex numbers are stored as pairs.
        return SavedTensor(shape[:-1] if dtype.is_complex and real else shape, dtype)

    def plain_names(self, names: Iterable[str]) -> Iterator[str]:
        """The names of the state, of names in the version."""
        return (split(name).name if self.keeps_apart else name for name in names)

    def others(self, known: set[str]) -> dict[str, dict[str, str]]:
        """By name, what is not among `known`, and not some other rank's own in the same world."""
        result = {}
        for name, found in self._by_name.items():
            if name in known:
                continue
            if self.same_world:
                found = {qualifier: saved for qualifier, saved in found.items()
                         if saved in self._own or (self.keeps_apart and not qualifier)}
            if found:
                result[name] = found
        return result


def local_tensors(encoded: Any) -> bool:
    """Whether there are tensors among the values."""
    if isinstance(encoded, list):
        return any(map(local_tensors, encoded))
    if not isinstance(encoded, dict):
        return False
    if encoded.get("$") == "tensor" or (encoded.get("$") == "leaf" and "v" in encoded):
        return True
    return any(map(local_tensors, encoded.values()))
