"""The contents of a version: which tensor of which rank has which name."""

from __future__ import annotations

import functools
from typing import Any, Iterable, Iterator

from ..client import Piece, VersionReader
from ..errors import InvalidArgumentError
from . import values
from .boxes import torch_dtype
from .identity import SAMPLES, of_rank, split
from .optimizer_state import SavedTensor

__all__ = ["LAYOUT", "STATE", "Saved", "StateMismatchError", "local_tensors"]

LAYOUT, STATE = "torch.layout", "torch.state"


class StateMismatchError(InvalidArgumentError):
    """The state differs from the version. `differences` has one sentence for each difference."""

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        shown = "\n  ".join(differences[:20])
        more = f"\n  and {len(differences) - 20} more" if len(differences) > 20 else ""
        super().__init__(f"the version does not fit the state, and nothing was restored; "
                         f"{len(differences)} differences:\n  {shown}{more}")


class Saved:
    """The tensors of a version by their names in the state, and the values saved with them.

    Args:
        rank, world: this rank, and the number of ranks that restore. In the world that saved the
            version, each rank finds its own values.
        own_only: use only the shard that this rank saved, for any number of ranks.
    """

    def __init__(self, reader: VersionReader, rank: int, world: int,
                 own_only: bool = False) -> None:
        self.reader, self.rank, self.world = reader, rank, world
        #: Extras by their bytes. Many ranks have the same layout.
        self._decoded: dict[bytes, Any] = {}
        self.layout, self.state = self.values_of(rank % reader.world)
        #: Format 1 is that of releases without rank-local tensors.
        self.keeps_apart = self.layout.get("format", 1) >= 2
        #: Tensors that should be equal on all ranks, but that this rank saved for itself.
        self.own: set[str] = set(self.layout.get("own", ()))
        #: Whether this rank restores the values of the same rank.
        self.same_world = reader.world == world
        self.pieces: dict[str, Piece] = {}
        #: Name in the state → qualifier → name in the version.
        self._by_name: dict[str, dict[str, str]] = {}
        self._own: set[str] = set(self.layout.get("held", ()))
        own_pieces = reader.own_pieces()
        self._own.update(piece.name for piece in own_pieces if piece.rank == rank)
        for piece in own_pieces if own_only else reader.tensors():
            if piece.name not in self.pieces and not piece.name.startswith(SAMPLES):
                self.pieces[piece.name] = piece
                self._file(self._by_name, piece.name, piece.name)

    @property
    def complete(self) -> bool:
        """Whether this rank's shard has all that the rank held. Releases before this one did not
        record that."""
        return bool(self.layout.get("complete"))

    def _file(self, index: dict[str, dict[str, str]], name: str, target: str) -> None:
        plain, qualifier = split(name)[:2] if self.keeps_apart else (name, "")
        index.setdefault(plain, {})[qualifier] = target

    def values_of(self, rank: int) -> tuple[Any, Any]:
        """The (layout, state) of a rank, in the format of docs/formats/torch.md."""
        return self._extra(rank, LAYOUT), self._extra(rank, STATE)

    def _extra(self, rank: int, name: str) -> Any:
        extra = self.reader.extra(rank, name)
        if extra is None:
            raise StateMismatchError([f"version {self.reader.version} was not saved by "
                                      f"holdfast.torch: it has no extra {name}"])
        if extra not in self._decoded:
            self._decoded[extra] = values.loads(extra)
        return self._decoded[extra]

    def _layouts(self) -> Iterator[Any]:
        """The layouts that may describe tensors that this rank restores."""
        yield self.layout
        if not self.same_world and self.keeps_apart:
            for rank in range(self.reader.world):
                yield self._extra(rank, LAYOUT)

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
        """The tensors under the first of these names that is in the version: qualifier → name there."""
        for name in names:
            found = self._by_name.get(name) or self._by_alias.get(name)
            if found:
                return found
        return {}

    def of_values(self, name: str, rank: int) -> str:
        """The name in the version of the tensor that the values of a rank call `name`."""
        found = self.choices([name])
        return found.get(of_rank(rank)) or found.get("") or name

    def tensors(self) -> dict[str, SavedTensor]:
        """The tensors that this rank may restore, by their names in the state, as they were in the program."""
        return {name: self._tensor(next(iter(found.values())))
                for name, found in self.others(set()).items()}

    def _tensor(self, name: str) -> SavedTensor:
        piece, real = self.pieces[name], self.types.get(name)
        shape = tuple(piece.global_shape)
        dtype = torch_dtype(piece.dtype) if real is None else values.dtype_of(real)
        # A complex type that cannot be stored is stored as pairs of numbers.
        return SavedTensor(shape[:-1] if dtype.is_complex and real else shape, dtype)

    def plain_names(self, names: Iterable[str]) -> Iterator[str]:
        """The names in the state for names in the version."""
        return (split(name).name if self.keeps_apart else name for name in names)

    def others(self, known: set[str]) -> dict[str, dict[str, str]]:
        """The tensors that are not `known`, by name. In the same world, other ranks' own are left out."""
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
    """Whether the encoded values contain tensors."""
    if isinstance(encoded, list):
        return any(map(local_tensors, encoded))
    if not isinstance(encoded, dict):
        return False
    if encoded.get("$") == "tensor" or (encoded.get("$") == "leaf" and "v" in encoded):
        return True
    return any(map(local_tensors, encoded.values()))
