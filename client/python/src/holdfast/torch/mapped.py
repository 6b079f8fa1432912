"""Files of tensors as memory: the kernel reads what is used, and may drop it again."""

from __future__ import annotations

import json
import mmap
import os
from math import prod
from typing import Any, NamedTuple

import torch

from ..errors import DataLossError
from ..tensors import DType
from .boxes import torch_dtype

__all__ = ["MappedFile", "Place", "read_header"]

_HEADER_BYTES_MAX = 100_000_000


class MappedFile:
    """A whole file. Tensors of it may be written to: the file does not change."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        with open(path, "rb") as file:
            self.bytes = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if self.bytes else b""

    def __getitem__(self, part: slice) -> bytes:
        return self._map[part]

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], begin: int) -> torch.Tensor:
        """A dense one whose first byte is at `begin`, with a storage of its own."""
        count = prod(shape)
        if begin < 0 or begin + count * dtype.itemsize > self.bytes:
            raise DataLossError(f"{self.path} ends before a tensor of it: it is cut off")
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=count * dtype.itemsize,
                                offset=begin)
        return flat.view(dtype).reshape(shape)

    def forget(self) -> None:
        """What was read does not stay in this process. Only while nothing was written to it."""
        if self.bytes:
            self._map.madvise(mmap.MADV_DONTNEED)


class Place(NamedTuple):
    """Where a safetensors file has a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


def read_header(file: MappedFile) -> tuple[dict[str, str], dict[str, Place]]:
    """Metadata and tensors of a safetensors file; every number is checked.

    Raises:
        DataLossError: it is none.
    """
    def damaged(what: str) -> DataLossError:
        return DataLossError(f"{file.path} is not a whole safetensors file: {what}")
    length = int.from_bytes(file[0:8], "little")
    if file.bytes < 8 or length > min(_HEADER_BYTES_MAX, file.bytes - 8):
        raise damaged("its header has no end")
    try:
        header: dict[str, Any] = json.loads(file[8:8 + length])
        metadata = header.pop("__metadata__", {})
        places = {}
        for name, said in header.items():
            dtype = torch_dtype(DType[said["dtype"]])
            shape = tuple(int(extent) for extent in said["shape"])
            begin, end = (int(offset) for offset in said["data_offsets"])
            if min(shape, default=0) < 0 or begin < 0 \
                    or end - begin != prod(shape) * dtype.itemsize or end > file.bytes - 8 - length:
                raise damaged(f"'{name}' has no place in it")
            places[name] = Place(dtype, shape, 8 + length + begin)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataLossError):
            raise
        raise damaged(f"its header cannot be read ({error})") from error
    return dict(metadata), places
