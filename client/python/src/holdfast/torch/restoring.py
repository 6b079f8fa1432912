"""Comparing a version with a state, and filling the state from it."""

from __future__ import annotations

from typing import Any, Iterable, Iterator

import torch

from ..client import Piece, View
from ..errors import FailedPreconditionError, InvalidArgumentError
from ..tensors import Device, DType, Tensor
from .boxes import stored_form, torch_dtype
from .optimizer_state import SavedTensor
from .parts import OptimizerPart, Part
from .snapshot import Snapshot, Stored
from .values import dtype_of

__all__ = ["Comparison", "StateMismatchError", "fill", "fill_from_view", "saved_tensors"]


class StateMismatchError(InvalidArgumentError):
    """The state is not the one that the version has. `differences`: one sentence each."""

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        shown = "\n  ".join(differences[:20])
        more = f"\n  and {len(differences) - 20} more" if len(differences) > 20 else ""
        super().__init__(f"the version does not fit the state, nothing was restored; "
                         f"{len(differences)} differences:\n  {shown}{more}")


class Comparison:
    """Which tensors of the state a version has, and what differs."""

    def __init__(self, view: View, snapshot: Snapshot, parts: Iterable[Part], layout: Any,
                 state: Any) -> None:
        self.version = view.version
        self.snapshot = snapshot
        self.differences: list[str] = []
        #: Optional groups of which the version has nothing.
        self.absent: set[str] = set()
        #: Under which name the version has a tensor of the state.
        self.sources: list[tuple[Stored, str]] = []
        #: Tensors that only the version describes.
        self.extra: dict[str, torch.Tensor] = {}
        self._types: dict[str, str] = layout["types"]
        self.aliases: dict[str, str] = layout["aliases"]
        self._saved: dict[str, Piece] = {piece.name: piece for piece in view.pieces()}
        general = self._compare_parts(list(parts), layout, state)
        self._compare_tensors(general)
        self._look_for_unexpected(general)

    def _compare_parts(self, parts: list[Part], layout: Any, state: Any) -> list[str]:
        """Names of the parts whose tensors the version alone describes."""
        general = []
        for part in parts:
            if part.name not in state["parts"]:
                self.differences.append(f"'{part.name}' is not in the version: it was added to the "
                                        f"state later; restore with strict=False to begin afresh")
                continue
            self.differences += part.differences(state["parts"][part.name])
            wanted = part.wanted(state["parts"][part.name])
            self.extra.update(wanted)
            if part.restores_itself:
                general.append(part.name)
            if isinstance(part, OptimizerPart) and part.layout() != layout["parts"].get(part.name):
                self.differences.append(f"'{part.name}' has other parameter groups than when it "
                                        f"was saved: make them of the same parameters, in order")
        for name in state["parts"].keys() - {part.name for part in parts}:
            self.differences.append(f"'{name}' is in the version, but not in the state: add it, or "
                                    f"restore with strict=False to do without")
        return general

    def _name_of(self, name: str) -> str | None:
        """Under which name the version has it; tied tensors have one."""
        if name in self._saved:
            return name
        target = self.aliases.get(name)
        if target in self._saved:
            return target
        # Tied here, saved apart or under another of its names.
        for alias, canonical in self.snapshot.aliases.items():
            if canonical == name:
                for candidate in (alias, self.aliases.get(alias)):
                    if candidate in self._saved:
                        return candidate
        return None

    def _compare_tensors(self, general: list[str]) -> None:
        groups: dict[str, list[tuple[Stored, str | None]]] = {}
        for name, stored in self.snapshot.stored.items():
            if _within(name, general):
                continue
            source = self._name_of(name)
            if stored.leaf.optional is not None:
                groups.setdefault(stored.leaf.optional, []).append((stored, source))
            else:
                self._compare(stored, source)
        for group, members in groups.items():
            # An optimizer's state of a parameter becomes the saved one; what else there is goes.
            there = [(stored, source) for stored, source in members if source is not None]
            if not there:
                self.absent.add(group)
            for stored, source in there:
                self._compare(stored, source)

    def _compare(self, stored: Stored, source: str | None) -> None:
        if source is None:
            self.differences.append(f"'{stored.name}' is not in the version: it was added or "
                                    f"renamed since; rename it back, or restore with strict=False")
            return
        piece, box = self._saved[source], stored.box
        if tuple(piece.global_shape) != box.global_shape:
            self.differences.append(f"'{stored.name}' has shape {list(box.global_shape)}, the "
                                    f"version has {list(piece.global_shape)}")
        elif piece.dtype != box.dtype or self._types.get(source) != stored.real_dtype:
            saved = self._types.get(source) or DType(piece.dtype).name
            self.differences.append(f"'{stored.name}' has elements of type "
                                    f"{stored.real_dtype or box.dtype.name}, the version {saved}")
        else:
            self.sources.append((stored, source))

    def _look_for_unexpected(self, general: list[str]) -> None:
        known = {source for _, source in self.sources} | set(self.snapshot.stored) \
            | set(self.snapshot.aliases) | set(self.extra)
        for name in sorted(self._saved.keys() - known):
            if not _within(name, general):
                self.differences.append(f"'{name}' is in the version, but not in the state: it was "
                                        f"removed or renamed since; restore with strict=False to "
                                        f"do without")

    def report(self) -> str:
        lines = [f"version {self.version}: {len(self.sources)} tensors match, "
                 f"{len(self.differences)} differences"]
        return "\n  ".join(lines + self.differences)


def saved_tensors(view: View, layout: Any) -> dict[str, SavedTensor]:
    """Name → the tensor of a version, of all ranks."""
    found = {}
    for piece in view.pieces():
        if piece.name not in found:
            real = layout["types"].get(piece.name)
            dtype = torch_dtype(piece.dtype) if real is None else dtype_of(real)
            shape = tuple(piece.global_shape)
            # Such complex numbers are stored as pairs.
            found[piece.name] = SavedTensor(shape[:-1] if dtype.is_complex and real else shape,
                                            dtype)
    return found


def _within(name: str, parts: list[str]) -> bool:
    return any(name == part or name.startswith(part + ".") for part in parts)


def _box(stored: Stored, source: str, memory: torch.Tensor) -> Tensor:
    box = stored.box
    return Tensor(source, memory.data_ptr(), box.dtype, box.shape, box.global_shape, box.offset,
                  Device.HOST, 0, memory)


def _wholes(tensors: dict[str, torch.Tensor], aliases: dict[str, str]) -> Iterator[Tensor]:
    """Dense tensors of the host, filled whole."""
    for name, tensor in tensors.items():
        stored, dtype, _ = stored_form(tensor, name)
        yield Tensor(aliases.get(name, name), stored.data_ptr(), dtype, tuple(stored.shape),
                     owner=tensor)


def _load(view: View, targets: list[Tensor], timeout: float) -> None:
    try:
        view.load(targets, timeout)
    except FailedPreconditionError as error:
        raise StateMismatchError(view.differences() or [str(error)]) from error


def fill(view: View, tensors: dict[str, torch.Tensor], aliases: dict[str, str],
         timeout: float) -> None:
    """Fills dense tensors of the host from a version. `aliases`: the version's layout's."""
    _load(view, list(_wholes(tensors, aliases)), timeout)


def fill_from_view(view: View, comparison: Comparison, timeout: float) -> dict[str, torch.Tensor]:
    """Fills the state's tensors. Returns all that were filled, by name."""
    targets: list[Tensor] = []
    copies: list[tuple[Stored, torch.Tensor]] = []
    for stored, source in comparison.sources:
        if stored.live.numel() == 0:
            continue
        memory = stored.live
        if not memory.is_contiguous() or memory.device.type != "cpu":
            memory = torch.empty(stored.live.shape, dtype=stored.live.dtype)
            copies.append((stored, memory))
        targets.append(_box(stored, source, memory))
    targets.extend(_wholes(comparison.extra, comparison.aliases))
    _load(view, targets, timeout)
    for stored, memory in copies:
        stored.fill(memory)
    filled = {stored.name: stored.leaf.tensor for stored, _ in comparison.sources}
    return filled | comparison.extra
