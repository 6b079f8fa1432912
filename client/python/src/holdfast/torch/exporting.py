"""A version that `holdfast export` has put together, as a directory that torch alone reads."""

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
    """Keys as they were saved; tensors are read when they are written, and then forgotten."""

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


def _say(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)


def _real(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """The tensor in the type that it has in torch, from that in which it is stored."""
    if name is None:
        return tensor
    dtype = values.dtype_of(name)
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)


class _Saved:
    """What the ranks said beside the tensors: the extras of all of them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.objects: dict[str, Any] = {}
        self.paths: dict[str, tuple] = {}
        self.layout: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        for path in sorted(folder.glob("rank-*.torch.*"), reverse=True):
            said = values.loads(path.read_bytes())
            if path.name.endswith(".torch.dcp"):
                self.objects.update(said.get("objects", {}))
                self.paths.update(values.decode(said.get("planner"), "planner_data") or {})
            elif path.name.endswith(".torch.layout"):
                self.layout = said  # rank 0's is the last
            else:
                self.state = said


def _decoded(encoded: Any, name: str) -> Any:
    """A value; None and a word about it where only unpickling would give it."""
    if isinstance(encoded, dict) and encoded.get("$") == "raw":
        raise values.UnsupportedValueError(f"'{name}' was saved by pickling it")
    return values.decode(encoded, name, tensor=lambda item: _LEAF)


class _Leaf:
    """Stands for a tensor, which comes by its own name."""


_LEAF = _Leaf()


def _group_names(name: str, groups: list[dict[str, Any]], tensors: dict[str, Any]) -> list | None:
    """Which parameters each group has: the version keeps a hash of their names. None: not to be
    found out."""
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


def _checkpointer_values(saved: _Saved, tensors: dict[str, Any]) -> tuple[dict, dict]:
    """(values, paths) of what a Checkpointer saved, as its state's state_dicts have them."""
    objects: dict[str, Any] = {}
    paths: dict[str, tuple] = {}
    for entry, encoded in saved.state.get("parts", {}).items():
        groups = saved.layout.get("parts", {}).get(entry)
        try:
            content = _decoded(encoded, entry)
        except values.UnsupportedValueError as error:
            _say(f"{error}; it is left out")
            continue
        if isinstance(groups, list):
            names = _group_names(entry, groups, tensors)
            if names is None:
                _say(f"which parameters the groups of '{entry}' have cannot be told: "
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
        if content is _LEAF or not isinstance(content, dict):
            continue
        flat, where = flatten_state_dict({entry: content})
        for name, value in flat.items():
            if value is not _LEAF and name not in tensors:
                objects[name], paths[name] = value, where[name]
    for name in tensors:
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
        source: model.safetensors with whole tensors, and the ranks' extras as rank-*.torch.*
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
                _say(f"{error}; it is left out")
    else:
        objects, paths = _checkpointer_values(saved, tensors)
    everything = {**tensors, **objects}
    paths = {name: tuple(paths.get(name, (name,))) for name in everything}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        dcp.save(everything, storage_writer=dcp.FileSystemWriter(target, sync_files=True),
                 planner=_Planner(file, paths), no_dist=True)
