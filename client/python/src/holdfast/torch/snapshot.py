"""The description of a state: which memory is saved under which name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

import torch

from .. import _native
from ..errors import InvalidArgumentError, UnsupportedError
from ..tensors import Device, Tensor, check_name
from .boxes import Box, Part as Rows, box_of, stored_form
from .identity import check_unqualified
from .parts import Leaf, Part, _local

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["Snapshot", "Stored"]


class Stored:
    """One tensor of the state in its stored form.

    If the live memory is not dense, or may change at any time, a dense copy is saved instead: the
    staging tensor.
    """

    def __init__(self, leaf: Leaf, rank: int, world: int, leader: Stored | None = None) -> None:
        self.name = leaf.name
        self.leaf = leaf
        #: The tensor whose division among ranks this one uses.
        self.leads: Stored = self
        self._take(leaf.tensor)
        #: The address when it was described. Resizing a storage moves all tensors in it.
        self.address = self.live.data_ptr()
        group = leaf.group
        if leader is not None and self._follows(leader):
            self.leads, group = leader, leader.group
        #: For a plain tensor, the ranks known to hold it.
        self.group = group
        self.box: Box = box_of(leaf.tensor, leaf.name, rank, world, cuttable=leaf.cuttable,
                               group=group, declared=leaf.declared or self.leads.leaf.declared)
        if _local(leaf.tensor) is not leaf.tensor:
            self.group = _group_of(leaf.tensor)
        self.staging: torch.Tensor | None = None
        self.identity = (self.address, self.live.shape, self.live.stride(),
                         leaf.tensor.dtype, self.live.device, self.box)
        device = self.live.device.type
        if leaf.copied or not self.live.is_contiguous() or device not in ("cpu", "cuda"):
            self.staging = torch.empty(
                self.live.shape, dtype=self.live.dtype,
                device=self.live.device if device == "cuda" else "cpu")

    def _follows(self, leader: Stored) -> bool:
        """Whether this tensor is divided as its leader is.

        A single number for a sharded parameter is equal for all shards. A larger plain tensor may be
        local to the shard.
        """
        tensor, parameter = self.leaf.tensor, leader.leaf.tensor
        sharded = _local(parameter) is not parameter
        return not sharded or _local(tensor) is not tensor or tensor.numel() == 1

    def _take(self, tensor: torch.Tensor) -> None:
        local = _local(tensor).detach()
        if type(local) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) \
                or local.layout != torch.strided or local.is_quantized:
            raise UnsupportedError(f"'{self.name}' is a {type(local).__name__} of layout "
                                   f"{local.layout}: only dense tensors and DTensors can be saved")
        if local.is_conj() or local.is_neg():
            raise UnsupportedError(f"'{self.name}' is a conjugated view: put the result of "
                                   f"resolve_conj() or resolve_neg() into the state")
        self.live, _, self.real_dtype = stored_form(local, self.name)

    def retake(self, leaf: Leaf) -> bool:
        """Takes another tensor under the same name. Returns False if it needs another description."""
        before = self.live
        self._take(leaf.tensor)
        self.leaf = leaf
        return (self.live.shape == before.shape and self.live.dtype == before.dtype
                and self.live.device == before.device
                and (self.staging is not None or self.live.stride() == before.stride()
                     and self.live.data_ptr() == self.address))

    @property
    def memory(self) -> torch.Tensor:
        """The dense memory that the library reads."""
        return self.live if self.staging is None else self.staging

    def stage(self) -> None:
        """Copies the live memory to the staging tensor, if there is one."""
        if self.staging is not None:
            self.staging.copy_(self.live)

    def fill(self, values: torch.Tensor) -> None:
        """Copies values (dense, in the stored form) to the live memory."""
        target = self.live
        for d, stride in enumerate(target.stride()):
            if stride == 0 and target.shape[d] > 1:  # expanded: all rows are one row in memory
                target, values = target.narrow(d, 0, 1), values.narrow(d, 0, 1)
        target.copy_(values)

    def part(self, qualifier: str, rows: Rows | None) -> Tensor | None:
        """The description of these rows along the cut dimension. None: there is nothing to save."""
        memory, box = self.memory, self.box
        if memory.numel() == 0 and 0 not in box.global_shape:
            return None
        d, shape, offset = box.cut_dimension, list(box.shape), list(box.offset)
        pointer = memory.data_ptr()
        if rows is not None:
            first, last = rows
            if first == last:
                return None
            if d is not None:
                shape[d], offset[d] = last - first, offset[d] + first
                pointer += first * box.row_bytes
        cuda = memory.device.type == "cuda"
        return Tensor(self.name + qualifier, pointer, box.dtype, tuple(shape), box.global_shape,
                      tuple(offset), Device.CUDA if cuda else Device.HOST,
                      (memory.device.index or 0) if cuda else 0, memory)


def _group_of(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(sorted(tensor.device_mesh.mesh.flatten().tolist()))


class Snapshot:
    """All tensors of a state. Tied tensors are one."""

    def __init__(self, parts: Iterable[Part], rank: int, world: int) -> None:
        self.stored: dict[str, Stored] = {}
        self.aliases: dict[str, str] = {}
        self._place = rank, world
        #: Parts whose leaves() are read again at each save.
        self._reread: list[Part] = []
        #: The watches of those that are read again only after a change.
        self._watches: dict[Part, _native.Watch] = {}
        self._watch = _native.Watch()
        followers: list[Leaf] = []
        seen: dict[tuple, str] = {}
        for part in parts:
            for leaf in part.leaves():
                check_name(leaf.name)
                check_unqualified(leaf.name)
                if leaf.follows is not None:
                    followers.append(leaf)
                else:
                    self._add(leaf, seen)
            if part.reread_when_changed:
                self._watch_one(part)
            if part.reread_when_changed or not part.watch(self._watch):
                self._reread.append(part)
        for leaf in followers:
            self._add(leaf, seen)
        self.on_device = any(stored.memory.is_cuda for stored in self.stored.values())
        self.staged = [stored for stored in self.stored.values() if stored.staging is not None]

    def _add(self, leaf: Leaf, seen: dict[tuple, str]) -> None:
        if leaf.name in self.stored or leaf.name in self.aliases:
            raise InvalidArgumentError(f"two tensors of the state have the name "
                                       f"'{leaf.name}': rename one of the entries")
        stored = self.described(leaf)
        same = stored.identity
        if same in seen:
            self.aliases[leaf.name] = seen[same]
            return
        self.stored[leaf.name] = stored
        if stored.live.numel() > 0:
            seen[same] = leaf.name

    def described(self, leaf: Leaf) -> Stored:
        """The stored form of a tensor, which need not be part of the state."""
        leader = self.aliases.get(leaf.follows or "", leaf.follows)
        return Stored(leaf, *self._place, self.stored.get(leader or ""))

    def _watch_one(self, part: Part) -> None:
        self._watches[part] = watch = _native.Watch()
        part.watch(watch)

    def still_holds(self) -> bool:
        """Whether the tensors and addresses are unchanged. Takes over tensors that are recreated each
        time."""
        if not self._watch.holds():
            return False
        for part in self._reread:
            if part in self._watches and self._watches[part].holds():
                continue
            leaves = {leaf.name: leaf for leaf in part.leaves()}
            mine = {name for name in (*self.stored, *self.aliases)
                    if name == part.name or name.startswith(part.name + ".")}
            if leaves.keys() != mine:
                return False
            for name, leaf in leaves.items():
                stored = self.stored.get(name)
                if stored is not None and not stored.retake(leaf):
                    return False
            if part in self._watches:
                self._watch_one(part)
        return True

    def real_dtypes(self, plan: Plan) -> dict[str, str]:
        """Name in the version → real type, for tensors that are stored as another type."""
        return {name + plan.qualifier(stored): stored.real_dtype
                for name, stored in self.stored.items() if stored.real_dtype}

    def saved_aliases(self, plan: Plan) -> dict[str, str]:
        """The tied tensors: alias → target, as names in the version."""
        qualifiers = {name: plan.qualifier(self.stored[name]) for name in self.aliases.values()}
        return {alias + qualifiers[name]: name + qualifiers[name]
                for alias, name in self.aliases.items()}

    def held_without_rows(self, plan: Plan) -> list[str]:
        """Names in the version of the group's tensors of which this rank saves no rows."""
        return [name + stored.box.qualifier for name, stored in self.stored.items()
                if plan.qualifier(stored).startswith("@group")
                and stored.part(stored.box.qualifier, plan.rows(stored)) is None]

    def saves_all(self, plan: Plan) -> bool:
        """Whether this rank saves all rows of all tensors that it holds."""
        return all(plan.rows(stored) in (None, stored.box.all_rows)
                   for stored in self.stored.values())

    def describe(self, plan: Plan) -> list[Tensor]:
        """The descriptions of the tensors, or parts of tensors, that this rank saves."""
        parts = (stored.part(plan.qualifier(stored), plan.rows(stored))
                 for stored in self.stored.values())
        return [part for part in parts if part is not None]
