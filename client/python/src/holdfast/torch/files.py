"""Tensors that live in files, as swapped states do."""

from __future__ import annotations

import os
import stat
from math import prod
from typing import Sequence

import torch

from ..errors import InvalidArgumentError

__all__ = ["file_tensor"]


def file_tensor(path: str | os.PathLike, dtype: torch.dtype, shape: Sequence[int],
                offset: int = 0) -> torch.Tensor:
    """A tensor whose elements are the bytes of a file, from `offset` on: an entry of a state like
    any tensor, for states that are kept on an NVMe device (ZeRO-Infinity's swap files, say).

        ckpt = hf.Checkpointer("job", {"model": model, "swap": {
            path.name: hf.file_tensor(path, torch.float32, [path.stat().st_size // 4])
            for path in swap_folder.glob("*.swp")}})

    The file is mapped. Saving reads it through the page cache, in the background, straight into the
    agent's memory; restoring writes into it. From `save` until `guard` returns it must not change,
    however it is written, nor be shortened as long as the checkpointer is open: reading beyond its
    end kills the process (SIGBUS). Map a file again that was replaced by another.

    Raises:
        InvalidArgumentError: the file is too short, or is none; `offset` does not fit the type.
        OSError: it cannot be opened for reading and writing.
    """
    name, size = os.fspath(path), prod(shape) * dtype.itemsize
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgumentError(f"{name} is no regular file")
    if offset < 0 or offset % dtype.itemsize != 0:
        raise InvalidArgumentError(f"offset {offset} in {name}: it must be a multiple of the "
                                   f"{dtype.itemsize} bytes of {dtype}")
    if size == 0 or offset + size > found.st_size:
        raise InvalidArgumentError(f"{name} has {found.st_size} bytes, and {list(shape)} of "
                                   f"{dtype} from {offset} on take {size}")
    mapped = torch.from_file(name, shared=True, size=offset + size, dtype=torch.uint8)
    return mapped[offset:].view(dtype).view(tuple(shape))
