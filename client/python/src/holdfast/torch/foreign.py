"""Reads checkpoints of other programs without running any code that is in them."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pickle
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch.distributed.checkpoint import filesystem as fs, metadata as md

from ..errors import DataLossError, NotFoundError, UnsupportedError
from .mapped import MappedFile, read_header

__all__ = ["Foreign", "FullTensor", "load_metadata", "read"]

_METADATA = ".metadata"
_INDEX = "model.safetensors.index.json"


def _member(kind: Any, name: Any) -> Any:
    """Replaces getattr(), which pickles of some versions of Python use for enumerations. Allows only
    the members of one enumeration."""
    if kind is not md._MEM_FORMAT_ENCODING or name not in kind.__members__:
        raise UnsupportedError(f"the checkpoint's metadata need the attribute '{name}' of "
                               f"{kind!r}, which no metadata of torch.distributed.checkpoint has")
    return kind[name]


#: All classes in a checkpoint's metadata. Making an object of them has no side effects.
_ALLOWED: dict[tuple[str, str], Any] = {
    (made.__module__, made.__qualname__): made for made in (
        md.Metadata, md.MetadataIndex, md.TensorStorageMetadata, md.BytesStorageMetadata,
        md.ChunkStorageMetadata, md.TensorProperties, md._MEM_FORMAT_ENCODING, md.StorageMeta,
        fs._StorageInfo)}
_ALLOWED |= {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("builtins", "getattr"): _member,
    ("collections", "OrderedDict"): dict,
}
_ALLOWED |= {(module, name): pathlib.PurePosixPath for module in ("pathlib", "pathlib._local")
             for name in ("PosixPath", "PurePosixPath")}


class _Unpickler(pickle.Unpickler):
    """Makes objects of the classes above and torch's type names. It imports nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is not None:
            return found
        if module == "torch" and isinstance(torch.__dict__.get(name),
                                            (torch.dtype, torch.layout, torch.memory_format)):
            return torch.__dict__[name]
        raise UnsupportedError(
            f"the checkpoint's metadata names '{module}.{name}', which no metadata of "
            f"torch.distributed.checkpoint needs: it is not loaded, since it could run anything")

    def persistent_load(self, pid: Any) -> Any:
        raise UnsupportedError("the checkpoint's metadata refers to objects outside of it")


def load_metadata(path: str | os.PathLike) -> md.Metadata:
    """Loads the `.metadata` of a checkpoint, which is a pickle. Makes only objects that belong there.

    Raises:
        UnsupportedError: the pickle has other objects; the message names the first one.
        DataLossError: the file is damaged, or not the metadata of a checkpoint.
    """
    with open(path, "rb") as file:
        try:
            found = _Unpickler(file).load()
        except UnsupportedError:
            raise
        except Exception as error:  # A damaged pickle may raise anything.
            raise DataLossError(f"{os.fspath(path)} cannot be read: {error}") from error
    if type(found) is not md.Metadata or not isinstance(found.state_dict_metadata, dict) \
            or not isinstance(found.storage_data, dict):
        raise DataLossError(f"{os.fspath(path)} is not the metadata of a checkpoint")
    return found


@dataclass
class FullTensor:
    """A tensor of the checkpoint, with the boxes that it is cut into."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: list[tuple[tuple[int, ...], tuple[int, ...], Callable[[], torch.Tensor]]]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass
class Foreign:
    """A checkpoint of another program.

    Attributes:
        tensors: the tensors by name.
        objects: the other values by name.
        paths: name → path in the state_dict.
        left_out: objects that only unpickling could read → the reason.
    """

    tensors: dict[str, FullTensor] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class _Directory:
    """The data files of a directory that torch.distributed.checkpoint wrote."""

    def __init__(self, folder: pathlib.Path, storage: dict[Any, Any]) -> None:
        self._folder = folder
        self._storage = storage
        self._files: dict[str, MappedFile] = {}

    def place(self, index: md.MetadataIndex) -> tuple[MappedFile, int, int]:
        """File, first byte and length of an item. Rejects paths outside of the directory."""
        info = self._storage.get(index)
        if type(info) is not fs._StorageInfo or type(info.relative_path) is not str \
                or type(info.offset) is not int or type(info.length) is not int:
            raise DataLossError(f"the metadata have no place for '{index.fqn}'")
        if info.__dict__.get("transform_descriptors"):
            raise UnsupportedError(f"'{index.fqn}' is transformed by {info.transform_descriptors} "
                                   f"(an extension of its writer): load and save it with torch")
        parts = pathlib.PurePosixPath(info.relative_path).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise DataLossError(f"the metadata place '{index.fqn}' in '{info.relative_path}', "
                                f"outside of the checkpoint")
        file = self._files.get(info.relative_path)
        if file is None:
            path = self._folder.joinpath(*parts)
            if not path.is_file():
                raise NotFoundError(f"{path} is missing: the checkpoint is incomplete")
            file = self._files[info.relative_path] = MappedFile(path)
        if info.offset < 0 or info.length < 0 or info.offset + info.length > file.bytes:
            raise DataLossError(f"{file.path} ends before '{index.fqn}': it is cut off")
        return file, info.offset, info.length

    def load(self, index: md.MetadataIndex, **options: Any) -> Any:
        file, begin, length = self.place(index)
        with open(file.path, "rb") as stream:
            try:
                return torch.load(fs._create_file_view(stream, begin, length), weights_only=True,
                                  **options)
            except (RuntimeError, EOFError, KeyError, ValueError) as error:
                raise DataLossError(f"'{index.fqn}' in {file.path} is damaged: {error}") from error

    def piece(self, index: md.MetadataIndex, dtype: torch.dtype,
              shape: tuple[int, ...]) -> torch.Tensor:
        """One saved tensor: a view of the mapped file if the file has its plain bytes, else a copy."""
        try:
            found = self.load(index, map_location="meta")
        except pickle.UnpicklingError as error:
            raise UnsupportedError(f"the metadata describe '{index.fqn}' as a tensor, but it is a "
                                   f"pickle of something else: it is not loaded") from error
        if not isinstance(found, torch.Tensor) or found.dtype != dtype \
                or tuple(found.shape) != shape:
            raise DataLossError(f"'{index.fqn}' is not a tensor of {dtype} and shape "
                                f"{list(shape)}, as the metadata describe it")
        place = getattr(found.untyped_storage(), "_checkpoint_offset", None)
        if place is None or not found.is_contiguous():
            return self.load(index, map_location="cpu").contiguous()
        file, begin, _ = self.place(index)
        return file.tensor(dtype, shape, begin + place + found.storage_offset() * dtype.itemsize)


def _read_dcp(folder: pathlib.Path) -> Foreign:
    metadata = load_metadata(folder / _METADATA)
    directory = _Directory(folder, metadata.storage_data)
    found = Foreign()
    for name, described in metadata.state_dict_metadata.items():
        if type(name) is not str:
            raise DataLossError("the metadata have a name that is not text")
        if isinstance(described, md.BytesStorageMetadata):
            try:
                found.objects[name] = directory.load(md.MetadataIndex(name), map_location="cpu")
            except pickle.UnpicklingError as error:
                found.left_out[name] = str(error).splitlines()[0]
            continue
        if type(described) is not md.TensorStorageMetadata:
            raise DataLossError(f"the metadata describe '{name}' as neither tensor nor bytes")
        dtype, pieces = described.properties.dtype, []
        for chunk in described.chunks:
            offset, shape = tuple(chunk.offsets), tuple(chunk.sizes)
            index = md.MetadataIndex(name, chunk.offsets)
            pieces.append((offset, shape, lambda index=index, dtype=dtype, shape=shape:
                           directory.piece(index, dtype, shape)))
        found.tensors[name] = FullTensor(dtype, tuple(described.size), pieces)
    if isinstance(metadata.planner_data, dict):
        found.paths = {name: tuple(path) for name, path in metadata.planner_data.items()
                       if isinstance(path, (tuple, list))}
    return found


def _read_safetensors(folder: pathlib.Path, names: list[str]) -> Foreign:
    found = Foreign()
    for file_name in names:
        path = folder / file_name
        if pathlib.PurePosixPath(file_name).name != file_name or not path.is_file():
            raise NotFoundError(f"{path} is missing: the checkpoint is incomplete")
        file = MappedFile(path)
        for name, place in read_header(file)[1].items():
            if name in found.tensors:
                raise DataLossError(f"'{name}' is in two files of {folder}")
            found.tensors[name] = FullTensor(place.dtype, place.shape, [
                ((0,) * len(place.shape), place.shape,
                 lambda file=file, place=place: file.tensor(*place))])
    return found


def read(folder: str | os.PathLike) -> Foreign:
    """Reads a directory of torch.distributed.checkpoint, or one of safetensors files.

    Raises:
        NotFoundError: the directory is neither, or a file is missing.
        UnsupportedError, DataLossError: see load_metadata().
    """
    folder = pathlib.Path(folder)
    if (folder / _METADATA).is_file():
        return _read_dcp(folder)
    if (folder / _INDEX).is_file():
        try:
            weights = json.loads((folder / _INDEX).read_text())["weight_map"]
            names = sorted({str(name) for name in weights.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataLossError(f"{folder / _INDEX} is not an index: {error}") from error
        return _read_safetensors(folder, names)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise NotFoundError(f"{folder} has no {_METADATA} of torch.distributed.checkpoint and no "
                            f"*.safetensors files")
    return _read_safetensors(folder, names)
