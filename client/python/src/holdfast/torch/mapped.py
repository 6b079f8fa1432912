"""Files of tensors, mapped into memory: the kernel reads used pages on demand and may drop them."""

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
    """A mapped file. Writes to its tensors do not change the file."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        with open(path, "rb") as file:
            self.bytes = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if self.bytes else b""

    def __getitem__(self, part: slice) -> bytes:
        return self._map[part]

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], begin: int) -> torch.Tensor:
        """A dense tensor whose first byte is at `begin`. Each tensor has its own storage."""
        count = prod(shape)
        if begin < 0 or begin + count * dtype.itemsize > self.bytes:
            raise DataLossError(f"{self.path} ends before the end of a tensor: it is cut off")
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=count * dtype.itemsize,
                                offset=begin)
        return flat.view(dtype).reshape(shape)

    def forget(self) -> None:
        """Drops the pages that were read. Call it only while no tensor has been written to."""
        if self.bytes:
            self._map.madvise(mmap.MADV_DONTNEED)


class Place(NamedTuple):
    """The place of a tensor in a safetensors file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


def read_header(file: MappedFile) -> tuple[dict[str, str], dict[str, Place]]:
    """Returns the metadata and the places of all tensors of a safetensors file. Checks every number.

    Raises:
        DataLossError: the file is damaged, or not a safetensors file.
    """
    def damaged(what: str) -> DataLossError:
        return DataLossError(f"{file.path} is not a complete safetensors file: {what}")
    length = int.from_bytes(file[0:8], "little")
    if file.bytes < 8 or length > min(_HEADER_BYTES_MAX, file.bytes - 8):
        raise damaged("its header is cut off")
    try:
        header: dict[str, Any] = json.loads(file[8:8 + length])
        metadata = header.pop("__metadata__", {})
        places = {}
        for name, entry in header.items():
            dtype = torch_dtype(DType[entry["dtype"]])
            shape = tuple(int(extent) for extent in entry["shape"])
            begin, end = (int(offset) for offset in entry["data_offsets"])
            if min(shape, default=0) < 0 or begin < 0 \
                    or end - begin != prod(shape) * dtype.itemsize or end > file.bytes - 8 - length:
                raise damaged(f"the offsets of '{name}' do not fit its shape or the file")
            places[name] = Place(dtype, shape, 8 + length + begin)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataLossError):
            raise
        raise damaged(f"its header cannot be read ({error})") from error
    return dict(metadata), places
