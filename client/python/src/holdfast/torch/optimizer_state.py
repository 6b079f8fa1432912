"""Makes optimizer state that a version has and the optimizer does not have yet, so that a restore can
fill it. Only `optimizer.state` changes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

import torch

from . import random_state

__all__ = ["SavedTensor", "keys_by_path", "make_missing"]


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a version, with the shape and type that it had in the program."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def keys_by_path(names: Iterable[str], prefix: str, paths: Iterable[str]) -> dict[str, set[str]]:
    """Returns path → keys for the names `prefix` + path + "." + key. A path may contain dots."""
    known = set(paths)
    found: dict[str, set[str]] = {}
    for name in names:
        if not name.startswith(prefix):
            continue
        rest = name[len(prefix):]
        end = rest.rfind(".")
        while end > 0 and rest[:end] not in known and not _is_place(rest[:end]):
            end = rest.rfind(".", 0, end)
        if end > 0:
            found.setdefault(rest[:end], set()).add(rest[end + 1:])
    return found


def _is_place(path: str) -> bool:
    """Whether the path is a key in angle brackets, which names state without a named parameter."""
    return path.startswith("<") and path.endswith(">")


def owner_of(path: str, owners: Mapping[str, Any]) -> Any:
    """The key of `optimizer.state` for a path. None: the optimizer has no such parameter."""
    if path in owners:
        return owners[path]
    numbers = path[1:-1].split(".")
    of_parameter = len(numbers) == 2 and all(number.isdigit() for number in numbers)
    return path[1:-1] if _is_place(path) and not of_parameter else None


def make_missing(optimizer: torch.optim.Optimizer, owners: Mapping[str, Any],
                 wanted: Mapping[str, Mapping[str, SavedTensor]],
                 groups: list[dict[str, Any]]) -> Callable[[], None] | None:
    """Makes the tensors of `wanted` (path → key → tensor) that the optimizer lacks.

    A tensor with its parameter's shape is made like the parameter, other tensors are plain. If only
    the optimizer determines how a tensor of another shape is sharded, it takes a step whose other
    effects are undone.

    Args:
        owners: path → key of `optimizer.state`.
        groups: the saved hyperparameters of each parameter group.

    Returns:
        A function that restores the previous state. None: nothing was made.
    """
    state = optimizer.state
    before = {owner: dict(entries) for owner, entries in state.items()}
    on_host = _steps_on_host(optimizer, groups)
    made, spread = False, False
    for path, tensors in wanted.items():
        owner = owner_of(path, owners)
        if owner is None:
            continue
        for key, saved in tensors.items():
            if _fits(state[owner].get(key) if owner in state else None, saved, owner):
                continue
            tensor = _made_like(saved, owner, key, on_host)
            spread |= tensor is None
            if tensor is not None:
                state[owner][key] = tensor
                made = True

    def put_back() -> None:
        state.clear()
        for owner, entries in before.items():
            state[owner] = entries

    # A step would change existing state, so it is taken only if the optimizer has none.
    if spread and not before:
        put_back()
        _make_by_step(optimizer)
        for path, tensors in wanted.items():
            owner = owner_of(path, owners)
            for key, saved in tensors.items():
                if owner is not None and key not in state.get(owner, {}):
                    tensor = _made_like(saved, owner, key, on_host)
                    if tensor is not None:
                        state[owner][key] = tensor
        made = True
    return put_back if made else None


def _steps_on_host(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> set[int]:
    """The ids of the parameters whose step counter is in host memory, by the rule of torch."""
    return {id(parameter) for group, saved in zip(optimizer.param_groups, groups)
            if not saved.get("capturable") and not saved.get("fused")
            for parameter in group["params"]}


def _fits(there: Any, saved: SavedTensor, owner: Any) -> bool:
    """Whether to keep the existing entry: to fill it, or to report that it differs from the saved one."""
    if not isinstance(there, torch.Tensor):
        return False
    same = tuple(there.shape) == saved.shape and there.dtype == saved.dtype
    # A mismatch that involves the parameter's shape means another parameter. Other buffers may grow.
    like = isinstance(owner, torch.Tensor) and owner.shape in (there.shape, saved.shape)
    return same or like


def _made_like(saved: SavedTensor, owner: Any, key: str, on_host: set[int]) -> torch.Tensor | None:
    """Makes a tensor of zeros. None: its shape does not show how it is sharded over the ranks."""
    if not isinstance(owner, torch.Tensor):
        return torch.zeros(saved.shape, dtype=saved.dtype)
    if key == "step":
        device = "cpu" if id(owner) in on_host else owner.device
        return torch.zeros(saved.shape, dtype=saved.dtype, device=device)
    if tuple(owner.shape) == saved.shape:
        return torch.zeros_like(owner.detach(), dtype=saved.dtype)
    if hasattr(owner, "_local_tensor") and saved.shape not in ((), (1,)):
        return None
    return torch.zeros(saved.shape, dtype=saved.dtype, device=owner.device)


def _make_by_step(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state as torch does, by a step with zero gradients. Everything else is restored."""
    from torch.distributed.checkpoint.state_dict import _init_optim_state
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in parameters]
    values = [p.detach().clone() for p in parameters]
    groups = [{k: copy.deepcopy(v) for k, v in group.items() if k != "params"}
              for group in optimizer.param_groups]
    attributes = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
    generators = random_state.capture()
    try:
        for p in parameters:
            p.grad = None
        _init_optim_state(optimizer)
    finally:
        random_state.restore(generators)
        for p, grad, value in zip(parameters, grads, values):
            p.grad = grad
            p.detach().copy_(value)
        for group, kept in zip(optimizer.param_groups, groups):
            for k in group.keys() - kept.keys() - {"params"}:
                del group[k]
            group.update(kept)
        for k in vars(optimizer).keys() - attributes.keys() - {"state", "param_groups"}:
            delattr(optimizer, k)
        vars(optimizer).update(attributes)
