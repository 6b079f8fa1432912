"""Tensors whose memory is a file, such as swapped optimizer states."""

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
    """Returns a tensor whose elements are the bytes of a file from `offset` on.

    It can be an entry of a state like any other tensor. Use it for states on an NVMe device, for
    example the swap files of ZeRO-Infinity.

        ckpt = hf.Checkpointer("job", {"model": model, "swap": {
            path.name: hf.file_tensor(path, torch.float32, [path.stat().st_size // 4])
            for path in swap_folder.glob("*.swp")}})

    The file is mapped. A save reads it in the background, through the page cache, directly into the
    agent's memory. A restore writes into it. The file must not change from `save` until `guard`
    returns, by any kind of write. It must not be truncated while the checkpointer is open: a read
    beyond its end kills the process (SIGBUS). Map the file again if another file replaced it.

    Raises:
        InvalidArgumentError: the file is too short or not a regular file, or `offset` is not a
            multiple of the element size.
        OSError: the file cannot be opened for reading and writing.
    """
    name, size = os.fspath(path), prod(shape) * dtype.itemsize
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgumentError(f"{name} is not a regular file")
    if offset < 0 or offset % dtype.itemsize != 0:
        raise InvalidArgumentError(f"offset {offset} in {name}: it must be a multiple of the "
                                   f"{dtype.itemsize} bytes of {dtype}")
    if size == 0 or offset + size > found.st_size:
        raise InvalidArgumentError(f"{name} has {found.st_size} bytes, and {list(shape)} of "
                                   f"{dtype} from {offset} on take {size}")
    mapped = torch.from_file(name, shared=True, size=offset + size, dtype=torch.uint8)
    return mapped[offset:].view(dtype).view(tuple(shape))
