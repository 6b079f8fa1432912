"""Comparing a version with a state, and filling the state from it."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, NamedTuple

import torch

from ..client import VersionReader
from ..errors import FailedPreconditionError
from ..tensors import Device, DType, Tensor
from .boxes import stored_form
from .identity import of_rank
from .parts import OptimizerPart, Part
from .reshape import Decisions, in_order, undecided
from .saved import Saved, StateMismatchError, local_tensors
from .snapshot import Snapshot, Stored

__all__ = ["Comparison", "fill", "fill_from_reader"]


class Source(NamedTuple):
    """The source of a tensor's values."""

    stored: Stored
    #: Names in the version. Several: the mean of them. None: zeros.
    names: list[str]


class Comparison:
    """The tensors that a state and a version have in common, and their differences."""

    def __init__(self, saved: Saved, snapshot: Snapshot, parts: Iterable[Part],
                 decisions: Decisions) -> None:
        self.version = saved.reader.version
        self.snapshot = snapshot
        self.differences: list[str] = []
        #: Optional groups that the version lacks.
        self.absent: set[str] = set()
        self.sources: list[Source] = []
        #: Tensors that the version alone describes, by their names in the state.
        self.extra: dict[str, torch.Tensor] = {}
        #: Their names in the version, by their names in the state.
        self.extra_names: dict[str, str] = {}
        #: The encoded values of the entries.
        self.values: dict[str, Any] = {}
        self._saved, self._decisions = saved, decisions
        self._undecided: set[str] = set()
        #: Tensors that on_reshape leaves unchanged.
        self._dropped: set[str] = set()
        parts = list(parts)
        general = self._compare_parts(parts)
        self._compare_tensors(general)
        #: Missing decisions, one sentence per entry. Even a restore with strict=False fails on them.
        self.undecided = undecided(self._undecided, saved.reader.world, saved.world)
        self._compare_others(parts, general)
        self.differences += undecided(self._undecided, saved.reader.world, saved.world)

    # ------------------------------------------------------------------------------ values

    def _compare_parts(self, parts: list[Part]) -> list[str]:
        """Compares the parts. Returns the names of those whose tensors the version alone describes."""
        general = []
        state, layout = self._saved.state, self._saved.layout
        for part in parts:
            if part.name not in state["parts"]:
                self.differences.append(f"'{part.name}' is not in the version: it was added to the "
                                        f"state later; restore with strict=False to begin afresh")
                continue
            if part.restores_itself:
                general.append(part.name)
            self.differences += part.differences(state["parts"][part.name])
            self._choose_values(part)
            if isinstance(part, OptimizerPart) and part.layout() != layout["parts"].get(part.name):
                self.differences.append(f"'{part.name}' has other parameter groups than when it "
                                        f"was saved: use the same parameters, in the same order")
        for name in state["parts"].keys() - {part.name for part in parts}:
            self.differences.append(f"'{name}' is in the version, but not in the state: add it, or "
                                    f"restore with strict=False to ignore it")
        return general

    def _choose_values(self, part: Part) -> None:
        """Chooses the rank whose values this part gets: the same rank in the same world. In another
        world any rank serves, unless the values contain tensors."""
        rank = self._saved.rank % self._saved.reader.world
        encoded = self._saved.state["parts"][part.name]
        own = self._saved.keeps_apart and part.has_own_values and local_tensors(encoded)
        if own and not self._saved.same_world:
            action = self._decisions.of(part.name)
            if action in ("mean", "zero"):
                self.differences.append(
                    f"'{part.name}' has tensors among its values, which on_reshape={action!r} "
                    f"does not support: use 'first' or 'drop'")
                return
            if action == "drop":
                return
            if action is None:
                self._undecided.add(part.name)
                return
            rank = 0
            encoded = self._saved.values_of(0)[1]["parts"][part.name]
        self.values[part.name] = encoded
        for name, tensor in part.wanted(encoded).items():
            self.extra[name] = tensor
            self.extra_names[name] = self._saved.of_values(name, rank)

    # ----------------------------------------------------------------------------- tensors

    def _names_of(self, name: str) -> Iterator[str]:
        """The names under which the version may have the tensor. Tied tensors have one name here."""
        yield name
        # The version may have it untied, or under another of its names.
        yield from (alias for alias, target in self.snapshot.aliases.items() if target == name)

    def _compare_tensors(self, general: list[str]) -> None:
        groups: dict[str, list[tuple[Stored, dict[str, str]]]] = {}
        for name, stored in self.snapshot.stored.items():
            if _within(name, general):
                continue
            found = self._saved.choices(self._names_of(name))
            if stored.leaf.optional is not None:
                groups.setdefault(stored.leaf.optional, []).append((stored, found))
            else:
                self._compare(stored, found)
        for group, members in groups.items():
            # The optimizer state of a parameter becomes the saved one. State that the version lacks is
            # removed, so it is not a difference.
            there = [(stored, found) for stored, found in members if found]
            if not there:
                self.absent.add(group)
            for stored, found in there:
                self._compare(stored, found)

    def _choose(self, stored: Stored, found: dict[str, str]) -> list[str] | None:
        """The names in the version from which to restore the tensor. None: a decision is missing."""
        saved, qualifier = self._saved, stored.box.qualifier
        if saved.same_world and stored.leads.name in saved.own:
            qualifier = of_rank(saved.rank)
        if "" in found:
            # Equal on all ranks that saved it. A version of one rank does not show that.
            if not qualifier or saved.reader.world > 1 or saved.same_world or not saved.keeps_apart:
                return [found[""]]
        elif saved.same_world and qualifier in found:
            return [found[qualifier]]
        elif len(found) == 1 and next(iter(found)).startswith("@group"):
            return list(found.values())
        names = in_order(found)
        action = self._decisions.of(stored.name)
        if action == "drop":
            self._dropped.add(stored.name)
        return {"first": names[:1], "mean": names, "zero": [], "drop": []}.get(action or "")

    def _compare(self, stored: Stored, found: dict[str, str]) -> None:
        if not found:
            self.differences.append(f"'{stored.name}' is not in the version: it was added or "
                                    f"renamed since; rename it back, or restore with strict=False")
            return
        names = self._choose(stored, found)
        if names is None:
            self._undecided.add(stored.name)
        elif stored.name not in self._dropped and all([self._fits(stored, n) for n in names]):
            if len(names) > 1 and not (stored.live.is_floating_point() or stored.live.is_complex()):
                self.differences.append(f"'{stored.name}' has elements of type "
                                        f"{stored.box.dtype.name}, which have no mean: choose "
                                        f"another action in on_reshape")
            else:
                self.sources.append(Source(stored, names))

    def _fits(self, stored: Stored, source: str) -> bool:
        piece, box = self._saved.pieces[source], stored.box
        if tuple(piece.global_shape) != box.global_shape:
            self.differences.append(f"'{stored.name}' has shape {list(box.global_shape)}, the "
                                    f"version has {list(piece.global_shape)}: build the state "
                                    f"with the saved shape, or restore with strict=False to keep "
                                    f"its present values")
            return False
        if piece.dtype != box.dtype or self._saved.types.get(source) != stored.real_dtype:
            saved = self._saved.types.get(source) or DType(piece.dtype).name
            self.differences.append(f"'{stored.name}' has elements of type "
                                    f"{stored.real_dtype or box.dtype.name}, the version {saved}: "
                                    f"convert the state to the saved type for the restore, or "
                                    f"restore with strict=False to keep its present values")
            return False
        return True

    # --------------------------------------------------------------- only in the version

    def _compare_others(self, parts: list[Part], general: list[str]) -> None:
        known = set(self.snapshot.stored) | set(self.snapshot.aliases) | set(self.extra)
        for part in parts:
            known |= part.left_out()
        for source in self.sources:
            known.update(self._saved.plain_names(source.names))
        others = {name: found for name, found in self._saved.others(known).items()
                  if not _within(name, general)}
        for name, found in sorted(others.items()):
            if not self._saved.same_world and "" not in found:
                if self._decisions.of(name) is None:
                    self._undecided.add(name)
                continue
            self.differences.append(f"'{name}' is in the version, but not in the state: it was "
                                    f"removed or renamed since; restore with strict=False to "
                                    f"ignore it")

    def report(self) -> str:
        """The number of matching tensors and all differences, as text."""
        lines = [f"version {self.version}: {len(self.sources)} tensors match, "
                 f"{len(self.differences)} differences"]
        return "\n  ".join(lines + self.differences)


def _within(name: str, parts: list[str]) -> bool:
    return any(name == part or name.startswith(part + ".") for part in parts)


def _box(stored: Stored, source: str, memory: torch.Tensor) -> Tensor:
    box = stored.box
    return Tensor(source, memory.data_ptr(), box.dtype, box.shape, box.global_shape, box.offset,
                  Device.HOST, 0, memory)


def _full_tensors(tensors: dict[str, torch.Tensor], names: dict[str, str]) -> Iterator[Tensor]:
    """Descriptions of dense host tensors that a load fills completely."""
    for name, tensor in tensors.items():
        stored, dtype, _ = stored_form(tensor, name)
        yield Tensor(names.get(name, name), stored.data_ptr(), dtype, tuple(stored.shape),
                     owner=tensor)


def _load(reader: VersionReader, targets: list[Tensor], timeout: float) -> None:
    try:
        reader.load(targets, timeout)
    except FailedPreconditionError as error:
        raise StateMismatchError(reader.differences() or [str(error)]) from error


def fill(saved: Saved, rank: int, tensors: dict[str, torch.Tensor], timeout: float) -> None:
    """Fills dense host tensors with the tensors that a rank saved under these names."""
    names = {name: saved.of_values(name, rank) for name in tensors}
    _load(saved.reader, list(_full_tensors(tensors, names)), timeout)


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    exact = torch.complex128 if values[0].is_complex() else torch.float64
    total = torch.zeros(values[0].shape, dtype=exact)
    for value in values:
        total += value
    return (total / len(values)).to(values[0].dtype)


def fill_from_reader(reader: VersionReader, comparison: Comparison,
                     timeout: float) -> dict[str, torch.Tensor]:
    """Fills the tensors of the state. Returns all filled tensors by name."""
    targets: list[Tensor] = []
    copies: list[tuple[Stored, list[torch.Tensor]]] = []
    for stored, names in comparison.sources:
        if stored.live.numel() == 0:
            continue
        memory = stored.live
        if len(names) == 1 and memory.is_contiguous() and memory.device.type == "cpu":
            targets.append(_box(stored, names[0], memory))
            continue
        there = [torch.empty(stored.live.shape, dtype=stored.live.dtype) for _ in names]
        targets.extend(_box(stored, name, memory) for name, memory in zip(names, there))
        copies.append((stored, there))
    targets.extend(_full_tensors(comparison.extra, comparison.extra_names))
    _load(reader, targets, timeout)
    for stored, there in copies:
        if not there:
            stored.live.zero_()
        else:
            stored.fill(there[0] if len(there) == 1 else _mean(there))
    filled = {source.stored.name: source.stored.leaf.tensor for source in comparison.sources}
    return filled | comparison.extra
