"""Converts an exported version to a directory that torch.distributed.checkpoint can load."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import sys
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from . import values
from .mapped import MappedFile, read_header

__all__ = ["to_dcp"]


class _Planner(dcp.DefaultSavePlanner):
    """Keeps the keys as saved. Each tensor is read when it is written, and its pages are then dropped."""

    def __init__(self, file: MappedFile, paths: dict[str, tuple]) -> None:
        super().__init__(flatten_state_dict=False)
        self._file = file
        self._paths = paths

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        super().set_up_planner(*args, **kwargs)
        self.flatten_state_dict = True
        self.mappings = self._paths

    def resolve_data(self, write_item: Any) -> Any:
        self._file.forget()
        return super().resolve_data(write_item)


def _warn(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)


def _real(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """Converts a tensor from its stored type to its type in torch."""
    if name is None:
        return tensor
    dtype = values.dtype_of(name)
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)


class _Saved:
    """The extras of all ranks: everything that was saved besides the tensors."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.objects: dict[str, Any] = {}
        self.paths: dict[str, tuple] = {}
        self.layout: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        for path in sorted(folder.glob("rank-*.torch.*"), reverse=True):
            extra = values.loads(path.read_bytes())
            if path.name.endswith(".torch.dcp"):
                self.objects.update(extra.get("objects", {}))
                self.paths.update(values.decode(extra.get("planner"), "planner_data") or {})
            elif path.name.endswith(".torch.layout"):
                self.layout = extra  # rank 0's comes last and stays
            else:
                self.state = extra


def _decoded(encoded: Any, name: str) -> Any:
    """The decoded value. Raises UnsupportedValueError if only unpickling could decode it."""
    if isinstance(encoded, dict) and encoded.get("$") == "raw":
        raise values.UnsupportedValueError(f"'{name}' was saved by pickling it")
    return values.decode(encoded, name, tensor=lambda item: _Leaf(item.get("v", "")))


class _Leaf:
    """Marks the place of a tensor, which is exported under its own name. Empty: that of its place."""

    def __init__(self, name: str) -> None:
        self.name = name


def _group_names(name: str, groups: list[dict[str, Any]], tensors: dict[str, Any]) -> list | None:
    """The parameters of each group, found by the hash of their names in the version. None: no
    candidate matches the hash."""
    parameters: dict[str, int] = {}
    for key, tensor in tensors.items():
        if key.startswith(f"{name}.state."):
            path = key[len(name) + 7:].rpartition(".")[0]
            parameters[path] = max(parameters.get(path, 0), tensor.dim())
    candidates = [sorted(parameters), sorted(p for p, dims in parameters.items() if dims >= 2),
                  sorted(p for p, dims in parameters.items() if dims < 2)]
    by_hash = {hashlib.sha256("\n".join(names).encode()).hexdigest(): names
               for names in candidates}
    found = [by_hash.get(group["names"]) for group in groups]
    return None if any(names is None for names in found) else found


class _Places:
    """Where the values and tensors of an entry are: paths in its dictionaries, lists and tuples, as torch
    flattens them. torch leaves lists whole that have neither tensors nor dictionaries."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        #: The names of everything that contains a tensor.
        self._holders = {name[:i] for name in tensors for i, c in enumerate(name) if c == "."}
        self._containers: dict[str, tuple[tuple, type]] = {}
        #: Name → path of the tensors whose place in the entry is known.
        self._leaves: dict[str, tuple] = {}
        #: Name → path and value, of all that is no tensor.
        self.values: dict[str, tuple[tuple, Any]] = {}

    def take(self, name: str, path: tuple, value: Any) -> None:
        if isinstance(value, _Leaf):
            self._leaves[value.name or name] = path
        elif isinstance(value, dict) or isinstance(value, (list, tuple)) \
                and (name in self._holders or _is_nested(value)):
            self._containers[name] = path, type(value)
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                step = key if isinstance(value, (list, tuple)) else str(key)
                self.take(f"{name}.{key}", (*path, step), item)
        else:
            self.values[name] = path, value

    def path_of(self, tensor: str) -> tuple | None:
        """The path of a tensor within a list or tuple. None: it is in none."""
        if (path := self._leaves.get(tensor)) is None:
            holder, _, last = tensor.rpartition(".")
            within, kind = self._containers.get(holder, ((), dict))
            path = (*within, last if issubclass(kind, dict) else int(last))
        return path if any(type(step) is int for step in path) else None


def _is_nested(value: Any) -> bool:
    """Whether torch takes this list apart, or a tensor is in it."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(item, _Leaf) or isinstance(item, dict) and type(value) is list
                   or _is_nested(item) for item in value)
    return False


def _checkpointer_values(saved: _Saved, tensors: dict[str, Any]) -> tuple[dict, dict]:
    """Returns (values, paths) of a Checkpointer's version, in the form of the entries' state_dicts.
    Gives tensors in lists the names that torch has for them."""
    objects: dict[str, Any] = {}
    paths: dict[str, tuple] = {}
    places = _Places(tensors)
    for entry, encoded in saved.state.get("parts", {}).items():
        groups = saved.layout.get("parts", {}).get(entry)
        try:
            content = _decoded(encoded, entry)
        except values.UnsupportedValueError as error:
            _warn(f"{error}: it is left out")
            continue
        if isinstance(groups, list):  # only optimizers have a layout that is a list
            names = _group_names(entry, groups, tensors)
            if names is None:
                _warn(f"the parameters of the groups of '{entry}' cannot be determined: "
                      f"'{entry}.param_groups' is left out")
            else:
                flat, where = flatten_state_dict({entry: {"param_groups": [
                    {**kept, "params": group} for kept, group in zip(content["groups"], names)]}})
                objects.update(flat)
                paths.update(where)
            for parameter, scalars in content["scalars"].items():
                for key, value in scalars.items():
                    objects[f"{entry}.state.{parameter}.{key}"] = value
                    paths[f"{entry}.state.{parameter}.{key}"] = (entry, "state", parameter, key)
            continue
        if not isinstance(content, dict):
            continue
        places.take(entry, (entry,), content)
    for name, (path, value) in places.values.items():
        if name not in tensors:
            objects[name], paths[name] = value, path
    for name in list(tensors):
        if (within := places.path_of(name)) is not None:
            # torch finds an element of a list by its path only.
            key = ".".join(map(str, within))
            tensors[key] = tensors.pop(name)
            paths[key] = within
            continue
        entry, _, rest = name.partition(".")
        if rest and isinstance(saved.layout.get("parts", {}).get(entry), list) \
                and rest.startswith("state."):
            parameter, _, key = rest[6:].rpartition(".")
            paths[name] = (entry, "state", parameter, key)
        elif rest and entry in saved.layout.get("parts", {}):
            paths[name] = (entry, rest)
    return objects, paths


def to_dcp(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Writes `target`, a directory for torch.distributed.checkpoint.load.

    Args:
        source: a directory with model.safetensors (complete tensors) and the ranks' extras, named
            rank-*.torch.*
    """
    folder = pathlib.Path(source)
    file = MappedFile(folder / "model.safetensors")
    metadata, places = read_header(file)
    types, aliases = (json.loads(metadata.get(key, "{}")) for key in ("types", "aliases"))
    tensors = {name: _real(file.tensor(*place), types.get(name))
               for name, place in places.items()}
    tensors |= {alias: tensors[name] for alias, name in aliases.items() if name in tensors}
    saved = _Saved(folder)
    if saved.paths or saved.objects:
        objects, paths = {}, dict(saved.paths)
        for name, encoded in saved.objects.items():
            try:
                objects[name] = _decoded(encoded, name)
            except values.UnsupportedValueError as error:
                _warn(f"{error}: it is left out")
    else:
        objects, paths = _checkpointer_values(saved, tensors)
    everything = {**tensors, **objects}
    paths = {name: tuple(paths.get(name, (name,))) for name in everything}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that only one process saves
        dcp.save(everything, storage_writer=dcp.FileSystemWriter(target, sync_files=True),
                 planner=_Planner(file, paths), no_dist=True)
