"""The entries of a training state. Each part splits its entry into named tensors and small values, and
restores it from them. The tensors are the live ones: a save reads them, a restore fills them."""

from __future__ import annotations

import collections
import copy
import hashlib
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    _get_fqns, get_model_state_dict, set_model_state_dict)

from .. import _native
from ..errors import InvalidArgumentError, UnsupportedError
from . import values
from .identity import SAMPLES, Replicated
from .optimizer_state import SavedTensor, keys_by_path, make_missing, owner_of

__all__ = ["Leaf", "Part", "parts_of"]

#: Larger tensors among the values of a state_dict are saved as tensors, not within the JSON.
INLINE_BYTES_MAX = 64 << 10
_SCHEDULERS = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


@dataclass
class Leaf:
    """A tensor of the state."""

    name: str
    tensor: torch.Tensor
    #: The tensor changes outside optimizer steps, or is recreated each time: copied within save().
    copied: bool = False
    #: For a plain tensor, the ranks known to hold it. (): only this rank, also if names are equal.
    group: tuple[int, ...] = ()
    #: The caller declared that all ranks hold it.
    declared: bool = False
    #: The ranks that hold it have the same bytes at each save, so each may save a part.
    cuttable: bool = True
    #: The name of a parameter. This tensor is divided among ranks as that parameter is.
    follows: str | None = None
    #: A group of leaves that a version may lack, such as one parameter's state. None: required.
    optional: str | None = None


class Part:
    """One entry of the state. `name` is its key."""

    #: restore() makes the tensors itself, independent of leaves().
    restores_itself = False
    #: The tensors may still be the same when the watch reports a change: leaves() is read again then.
    reread_when_changed = False
    #: The caller declared that the entry is equal on all ranks.
    declared = False
    #: The values may contain tensors that differ between ranks.
    keeps_values = False

    def __init__(self, name: str, allow_pickle: bool) -> None:
        self.name = name
        self.allow_pickle = allow_pickle

    @property
    def has_own_values(self) -> bool:
        return self.keeps_values and not self.declared

    def prepare(self, saved: Mapping[str, SavedTensor], encoded: Any) -> Callable[[], None] | None:
        """Makes tensors that the version has and that do not exist yet. Called before a restore.

        `encoded` is what restore() will get. Returns a function that removes them again. None:
        nothing was made.
        """
        return None

    def leaves(self) -> list[Leaf]:
        """The tensors of this entry."""
        raise NotImplementedError

    def watch(self, watch: _native.Watch) -> bool:
        """Adds the conditions under which leaves() stays the same.

        Returns False if leaves() must be read at each save, or with `reread_when_changed`, when the
        added conditions no longer hold.
        """
        return False

    def layout(self) -> Any:
        """The structure that a state must match exactly, as JSON. Compared at a restore."""
        return None

    def differences(self, encoded: Any) -> list[str]:
        """The reasons why a version's values do not fit this part at all, one sentence each. If there
        are any, restore() does not change the part."""
        return []

    def capture(self) -> Any:
        """The values that are not among the leaves, encoded."""
        return None

    def capture_json(self) -> bytes:
        """capture() as the JSON that is saved. The leaves() are those of the last watch()."""
        return values.dumps(self.capture())

    def restore(self, encoded: Any, absent: set[str], loaded: dict[str, torch.Tensor]) -> None:
        """Restores the values. Called after the leaves were filled. `absent` has the optional groups
        that the version lacks, `loaded` the filled tensors by name, including those of wanted()."""

    def left_out(self) -> set[str]:
        """Names of tensors that are deliberately not saved."""
        return set()

    def wanted(self, encoded: Any) -> dict[str, torch.Tensor]:
        """Tensors by name that are not among the leaves and that restore() needs filled."""
        return {}


class ModelPart(Part):
    """A module. The wrappers of DDP and torch.compile do not appear in the names."""

    def __init__(self, name: str, model: nn.Module, allow_pickle: bool,
                 trainable_only: bool = False) -> None:
        super().__init__(name, allow_pickle)
        self.model = model
        self._trainable_only = trainable_only
        self._left_out: set[str] = set()
        for path, module in model.named_modules():
            if type(module).__name__ == "FullyShardedDataParallel":
                raise UnsupportedError(f"'{name}.{path}' is wrapped by FullyShardedDataParallel: "
                                       f"use torch.distributed.fsdp.fully_shard")
        self._dynamic = False

    def _live(self) -> set[int]:
        tensors = (*self.model.parameters(), *self.model.buffers())
        return {_local(tensor).data_ptr() for tensor in tensors if not tensor.is_meta}

    def leaves(self) -> list[Leaf]:
        for path, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if nn.parameter.is_lazy(tensor):
                raise UnsupportedError(f"'{self.name}.{path}' has no shape yet, since its module is "
                                       f"lazy: run one batch through it before you save or "
                                       f"restore it")
        state = get_model_state_dict(self.model)
        live = self._live()
        parameters = {_local(parameter).data_ptr() for parameter in self.model.parameters()
                      if not parameter.is_meta}
        replicas, broadcast = _of_data_parallel(self.model)
        frozen = self._frozen()
        leaves, self._dynamic = [], False
        self._left_out = set()
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                self._dynamic = True
                continue
            if _local(value).data_ptr() in frozen:
                self._left_out.add(f"{self.name}.{key}")
                continue
            refuse_meta(f"{self.name}.{key}", value)
            address = _local(value).data_ptr()
            made = value.numel() > 0 and address not in live and _local(value).numel() > 0
            self._dynamic |= made
            is_parameter = address in parameters
            leaves.append(Leaf(f"{self.name}.{key}", value, copied=made or not is_parameter,
                               group=replicas.get(address, ()), declared=self.declared,
                               cuttable=self.declared or address not in broadcast))
        return leaves

    def _frozen(self) -> set[int]:
        if not self._trainable_only:
            return set()
        return {_local(parameter).data_ptr() for parameter in self.model.parameters()
                if not parameter.requires_grad and _local(parameter).numel() > 0}

    def left_out(self) -> set[str]:
        return self._left_out

    def watch(self, watch: _native.Watch) -> bool:
        for module in self.model.modules():
            for members in (module._parameters, module._buffers, module._modules):
                if members:
                    watch.add_values(members)
        for parameter in (*self.model.parameters(), *self.model.buffers()):
            watch_tensor(watch, parameter)
        return not self._dynamic

    def _values(self) -> dict[str, Any]:
        if not self._dynamic:
            return {}
        return {key: value for key, value in get_model_state_dict(self.model).items()
                if not isinstance(value, torch.Tensor)}

    def capture(self) -> Any:
        return values.encode(self._values(), self.name, self.allow_pickle)

    def restore(self, encoded: Any, absent: set[str], loaded: dict[str, torch.Tensor]) -> None:
        if not self._dynamic:
            return
        # Values that state_dict() computes can only be set by load_state_dict().
        state = get_model_state_dict(self.model)
        for key, value in state.items():
            filled = loaded.get(f"{self.name}.{key}")
            if isinstance(value, torch.Tensor) and filled is not None:
                value.copy_(filled)
        state.update(values.decode(encoded or {}, self.name, self.allow_pickle))
        set_model_state_dict(self.model, state)


def _of_data_parallel(model: nn.Module) -> tuple[dict[int, tuple[int, ...]], set[int]]:
    """Returns (address → ranks on which DistributedDataParallel keeps the tensor equal, addresses of
    buffers). Buffers are equal only when a step begins: the first rank then broadcasts its own."""
    replicas: dict[int, tuple[int, ...]] = {}
    broadcast: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.parallel.DistributedDataParallel):
            continue
        ranks = tuple(sorted(dist.get_process_group_ranks(module.process_group)))
        ignored = module.parameters_to_ignore
        buffers = module.module.named_buffers() if module.broadcast_buffers else ()
        for own, tensors in ((broadcast, buffers), (set(), module.module.named_parameters())):
            addresses = {tensor.data_ptr() for name, tensor in tensors
                         if name not in ignored and _local(tensor) is tensor and tensor.numel() > 0}
            replicas.update(dict.fromkeys(addresses, ranks))
            own |= addresses
    return replicas, broadcast


class OptimizerPart(Part):
    """An optimizer. Its state is named after the parameters."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer,
                 models: dict[str, nn.Module], allow_pickle: bool) -> None:
        super().__init__(name, allow_pickle)
        self.optimizer = optimizer
        self.models = models
        #: Path → keys of the tensors in the version that was passed to prepare().
        self._saved_keys: dict[str, set[str]] = {}
        #: torch's own optimizers keep state that depends on the parameter and its gradients alone.
        self._follows = type(optimizer).__module__.startswith("torch.optim.")

    def _leaders(self) -> dict[torch.Tensor, str]:
        """The names of the parameters in the modules of the state."""
        if not self._follows or self.declared:
            return {}
        return {parameter: f"{name}.{min(_get_fqns(model, path))}"
                for name, model in reversed(self.models.items())
                for path, parameter in model.named_parameters()}

    def _names(self) -> dict[torch.Tensor, str]:
        """The names of all parameters: from the modules, or by index if no module has the parameter."""
        owned = {parameter for group in self.optimizer.param_groups
                 for parameter in group["params"]}
        by_model = {}
        for model_name, model in self.models.items():
            found = {parameter: min(_get_fqns(model, path))
                     for path, parameter in model.named_parameters() if parameter in owned}
            if found:
                by_model[model_name] = found
        names: dict[torch.Tensor, str] = {}
        for model_name, found in by_model.items():
            prefix = "" if len(by_model) == 1 else f"{model_name}."
            for parameter, path in found.items():
                names.setdefault(parameter, prefix + path)
        for g, group in enumerate(self.optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                names.setdefault(parameter, f"<{g}.{i}>")
        return names

    def _owners(self) -> dict[str, Any]:
        """Path → key of `optimizer.state`."""
        owners: dict[str, Any] = {path: parameter for parameter, path in self._names().items()}
        for key in self.optimizer.state:
            if not isinstance(key, torch.Tensor):
                owners[f"<{key}>"] = key
        return owners

    def prepare(self, saved: Mapping[str, SavedTensor], encoded: Any) -> Callable[[], None] | None:
        owners, prefix = self._owners(), f"{self.name}.state."
        self._saved_keys = keys_by_path(saved, prefix, owners)
        wanted = {path: {key: saved[f"{prefix}{path}.{key}"] for key in sorted(keys)}
                  for path, keys in self._saved_keys.items()}
        groups = values.decode(encoded, self.name, self.allow_pickle)["groups"]
        return None if self.differences(encoded) \
            else make_missing(self.optimizer, owners, wanted, groups)

    def differences(self, encoded: Any) -> list[str]:
        saved = encoded.get("class")
        mine = type(self.optimizer).__qualname__
        defaults = set(self.optimizer.defaults)
        if saved in (None, mine) or all(defaults <= group.keys() for group in encoded["groups"]):
            return []
        return [f"'{self.name}' is a {mine}, the version has the state of a {saved}: restore with "
                f"strict=False to keep its own state"]

    def _entries(self) -> Iterator[tuple[Any, str, str, dict, Any]]:
        """Yields (parameter, its name, key, the dictionary that has it, value)."""
        names = self._names()
        for parameter, state in self.optimizer.state.items():
            path = names.get(parameter, "<lost>") if isinstance(parameter, torch.Tensor) \
                else f"<{parameter}>"
            for key, value in state.items():
                yield parameter, path, str(key), state, value

    def leaves(self) -> list[Leaf]:
        leaves, leaders = [], self._leaders()
        for parameter, path, key, _, value in self._entries():
            if isinstance(value, torch.Tensor):
                name = f"{self.name}.state.{path}.{key}"
                refuse_meta(name, value)
                leaves.append(Leaf(name, value, optional=f"{self.name}.state.{path}",
                                   declared=self.declared, follows=leaders.get(parameter)))
        self._scalars = [(path, key, state) for _, path, key, state, value in self._entries()
                         if not isinstance(value, torch.Tensor)]
        return leaves

    def watch(self, watch: _native.Watch) -> bool:
        watch.add_entry(self.optimizer.__dict__, "state")
        watch.add_values(self.optimizer.state)
        for state in self.optimizer.state.values():
            watch.add_tensors(state, torch.Tensor)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    watch_tensor(watch, value)
        return True

    def layout(self) -> Any:
        names = self._names()
        groups = []
        for group in self.optimizer.param_groups:
            text = "\n".join(sorted(names[parameter] for parameter in group["params"]))
            groups.append({"parameters": len(group["params"]),
                           "names": hashlib.sha256(text.encode()).hexdigest()})
        return groups

    def capture(self) -> Any:
        groups = [{key: value for key, value in group.items() if key != "params"}
                  for group in self.optimizer.param_groups]
        scalars: dict[str, dict[str, Any]] = {}
        for path, key, state in self._scalars:
            scalars.setdefault(path, {})[key] = state[key]
        return values.encode({"class": type(self.optimizer).__qualname__, "groups": groups,
                              "scalars": scalars}, self.name, self.allow_pickle)

    def restore(self, encoded: Any, absent: set[str], loaded: dict[str, torch.Tensor]) -> None:
        if self.differences(encoded):
            return
        saved = values.decode(encoded, self.name, self.allow_pickle)
        owners, state = self._owners(), self.optimizer.state
        scalars = saved["scalars"]
        # State that is newer than the version is removed.
        for path, owner in owners.items():
            kept = self._saved_keys.get(path, set()) | scalars.get(path, {}).keys()
            for key in [key for key in state.get(owner, ()) if str(key) not in kept]:
                del state[owner][key]
            if not kept:
                state.pop(owner, None)
        for path, entries in scalars.items():
            owner = owner_of(path, owners)
            if owner is not None:
                state[owner].update(entries)
        for group, kept in zip(self.optimizer.param_groups, saved["groups"]):
            for key, value in kept.items():
                if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value


class GeneralPart(Part):
    """Anything with state_dict() and load_state_dict(): schedulers, scalers, data loaders."""

    restores_itself = True
    #: The tensors of state_dict() may change at any time.
    copied = True

    def __init__(self, name: str, thing: Any, allow_pickle: bool) -> None:
        super().__init__(name, allow_pickle)
        self.thing = thing
        #: A scheduler's state depends on the step alone, so it is equal on all ranks.
        self.keeps_values = not isinstance(thing, _SCHEDULERS)
        self._encoded: Any = None

    def leaves(self) -> list[Leaf]:
        leaves: list[Leaf] = []

        def large(tensor: torch.Tensor, where: str) -> Any:
            refuse_meta(where, tensor)
            if _local(tensor) is tensor and tensor.nbytes <= INLINE_BYTES_MAX:
                return None
            leaves.append(Leaf(where, tensor, copied=self.copied, declared=self.declared,
                               optional=where))
            return {"$": "leaf", "v": where, "shape": list(tensor.shape),
                    "dtype": str(tensor.dtype)}
        self._encoded = values.encode(self.thing.state_dict(), self.name, self.allow_pickle, large)
        return leaves

    def capture(self) -> Any:
        # The same save has called leaves(), which sets this.
        return self._encoded

    def wanted(self, encoded: Any) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}

        def make(item: dict[str, Any]) -> torch.Tensor:
            found[item["v"]] = torch.empty(item["shape"], dtype=values.dtype_of(item["dtype"]))
            return found[item["v"]]
        values.decode(encoded, self.name, self.allow_pickle, make)
        return found

    def restore(self, encoded: Any, absent: set[str], loaded: dict[str, torch.Tensor]) -> None:
        state = values.decode(encoded, self.name, self.allow_pickle, lambda item: loaded[item["v"]])
        self.thing.load_state_dict(state)


class TreePart(Part):
    """A tensor, or a dictionary of tensors and values. A restore fills tensors and replaces values."""

    reread_when_changed = True
    keeps_values = True

    def __init__(self, name: str, tree: Any, allow_pickle: bool) -> None:
        super().__init__(name, allow_pickle)
        self.tree = tree
        #: The template for the structure that the last watch() added.
        self._template: _Template | None = None

    def leaves(self) -> list[Leaf]:
        leaves: list[Leaf] = []
        for where, value, in_tuple in _places(self.tree, self.name):
            if isinstance(value, torch.Tensor):
                refuse_meta(where, value)
                # A tuple is immutable, so a training loop replaces it, with other tensors each time.
                leaves.append(Leaf(where, value, copied=in_tuple, declared=self.declared))
        return leaves

    def watch(self, watch: _native.Watch) -> bool:
        self._template = None
        watch.add_tree(self.tree, torch.Tensor)
        for _, value, _ in _places(self.tree, self.name):
            if isinstance(value, torch.Tensor):
                watch_tensor(watch, value)
        return False

    def capture_json(self) -> bytes:
        if self._template is None:
            self._template = _Template(self.tree, self.name)
        return self._template.filled(self.allow_pickle)

    def restore(self, encoded: Any, absent: set[str], loaded: dict[str, torch.Tensor]) -> None:
        saved = values.decode(encoded, self.name, self.allow_pickle, lambda item: _LEAF)
        _replace(self.tree, saved)


def _places(tree: Any, where: str, in_tuple: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Yields (name, value, whether it is inside a tuple) of the values in nested dictionaries, lists,
    and tuples with tensors."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _places(value, f"{where}.{key}", in_tuple)
    elif isinstance(tree, list) or _has_tensors(tree):
        for i, value in enumerate(tree):
            yield from _places(value, f"{where}.{i}", in_tuple or type(tree) is tuple)
    else:
        yield where, tree, in_tuple


def _holds(value: Any, found: Callable[[Any], bool]) -> bool:
    """Whether `found` is true of the value, or of one within its lists, tuples and dictionaries."""
    if type(value) in (list, tuple):
        return any(_holds(item, found) for item in value)
    if isinstance(value, dict):
        return any(_holds(item, found) for item in value.values())
    return found(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _has_tensors(value: Any) -> bool:
    """Whether this is a tuple with tensors, which is traversed. Other tuples are values."""
    return type(value) is tuple and _holds(value, _is_tensor)


class _Template:
    """The JSON of a tree with gaps for the values. A save fills the gaps, and need not visit each of
    ten thousand tensors. Tensors in dictionaries are left out, since their names identify them. In
    lists a leaf keeps their position."""

    _MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)

    def __init__(self, tree: Any, name: str) -> None:
        self._gaps: list[tuple[Any, Any, str]] = []
        mark = uuid.uuid4().hex
        skeleton = self._hollow([tree], 0, name, mark)
        text = values.dumps(values.encode(skeleton, name, False, lambda *_: {"$": "leaf"}))
        self._texts = text.split(b'"%s"' % mark.encode())

    def _hollow(self, container: Any, key: Any, where: str, mark: str) -> Any:
        value = container[key]
        if isinstance(value, torch.Tensor):
            return value
        if type(value) is list:
            return [self._hollow(value, i, f"{where}.{i}", mark) for i in range(len(value))]
        if _has_tensors(value):
            return tuple(self._hollow(value, i, f"{where}.{i}", mark) for i in range(len(value)))
        if type(value) in self._MAPPINGS:
            hollow = copy.copy(value)
            hollow.clear()
            for k, item in value.items():
                if not isinstance(item, torch.Tensor):
                    hollow[k] = self._hollow(value, k, f"{where}.{k}", mark)
            return hollow
        self._gaps.append((container, key, where))
        return mark

    def filled(self, allow_pickle: bool) -> bytes:
        """The JSON with the current values in the gaps."""
        pieces = self._texts[:1]
        for (container, key, where), text in zip(self._gaps, self._texts[1:]):
            pieces += values.dumps(values.encode(container[key], where, allow_pickle)), text
        return b"".join(pieces)


_LEAF = object()


def _is_leaf(value: Any) -> bool:
    return value is _LEAF


def _replace(tree: Any, saved: Any) -> None:
    """Replaces the values of `tree` by the saved ones, in place. Lists get their saved length."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) \
        if isinstance(tree, list) else ()
    for key, value in list(items):
        absent = key not in saved if isinstance(tree, dict) else key >= len(saved)
        if absent or isinstance(value, torch.Tensor) or saved[key] is _LEAF:
            continue
        if isinstance(value, (dict, list)) and isinstance(saved[key], (dict, list)):
            _replace(value, saved[key])
        elif _has_tensors(value) and isinstance(saved[key], tuple):
            items = list(value)
            _replace(items, list(saved[key]))
            tree[key] = tuple(items)
        else:
            tree[key] = saved[key]
    if isinstance(tree, dict):
        tree.update((key, value) for key, value in saved.items()
                    if key not in tree and not _holds(value, _is_leaf))
    elif isinstance(tree, list):
        while len(tree) > len(saved) and not _holds(tree[-1], _is_tensor):
            tree.pop()
        tree += [value for value in saved[len(tree):] if not _holds(value, _is_leaf)]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's part on this rank."""
    return getattr(tensor, "_local_tensor", tensor)


def refuse_meta(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_meta or _local(tensor).is_meta:
        raise UnsupportedError(f"'{name}' is on the meta device and has no values: materialise the "
                               f"model (to_empty, then initialise it) before you save or "
                               f"restore it")


def watch_tensor(watch: _native.Watch, tensor: torch.Tensor) -> None:
    local = _local(tensor)
    if local is not tensor:
        watch.add_attribute(tensor, "_local_tensor")
    watch.add_address(local)


def parts_of(state: dict[str, Any], allow_pickle: bool, trainable_only: bool = False) -> list[Part]:
    """Makes one part for each entry.

    Raises:
        UnsupportedValueError: an entry has a type that cannot be saved; the message names it.
    """
    declared = {name for name, thing in state.items() if isinstance(thing, Replicated)}
    state = {name: thing.thing if isinstance(thing, Replicated) else thing
             for name, thing in state.items()}
    models = {name: thing for name, thing in state.items() if isinstance(thing, nn.Module)}
    parts: list[Part] = []
    for name, thing in state.items():
        if not name or "." in name or name == SAMPLES:
            raise InvalidArgumentError(f"state['{name}']: the name of an entry is not empty and has "
                                       f"no dots, which separate it from the names within the entry")
        if isinstance(thing, Part):
            parts.append(thing)
        elif isinstance(thing, nn.Module):
            parts.append(ModelPart(name, thing, allow_pickle, trainable_only))
        elif isinstance(thing, torch.optim.Optimizer):
            parts.append(OptimizerPart(name, thing, models, allow_pickle))
        elif isinstance(thing, (torch.Tensor, dict)):
            parts.append(TreePart(name, thing, allow_pickle))
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            parts.append(GeneralPart(name, thing, allow_pickle))
        else:
            raise values.UnsupportedValueError(
                f"state['{name}'] is a {type(thing).__qualname__}: it can be a module, an "
                f"optimizer, a tensor, a dictionary of them, or something with state_dict() and "
                f"load_state_dict()")
        if name in declared:
            parts[-1].declared = True
    return parts
