"""Descriptions of tensors: where their memory is, and which box of which global tensor they are."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Sequence

from .errors import InvalidArgumentError

__all__ = ["DType", "Device", "Tensor"]


class DType(enum.IntEnum):
    """Element types, as in safetensors."""

    BOOL = 0
    U8 = 1
    I8 = 2
    F8_E4M3 = 3
    F8_E5M2 = 4
    U16 = 5
    I16 = 6
    F16 = 7
    BF16 = 8
    U32 = 9
    I32 = 10
    F32 = 11
    U64 = 12
    I64 = 13
    F64 = 14
    C64 = 15

    @property
    def bytes(self) -> int:
        """The size of one element."""
        return (1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8)[self]


class Device(enum.IntEnum):
    """Where a tensor's memory is."""

    HOST = 0
    CUDA = 1


_NUMPY = {
    "|b1": DType.BOOL, "|u1": DType.U8, "|i1": DType.I8, "<u2": DType.U16, "<i2": DType.I16,
    "<f2": DType.F16, "<u4": DType.U32, "<i4": DType.I32, "<f4": DType.F32, "<u8": DType.U64,
    "<i8": DType.I64, "<f8": DType.F64, "<c8": DType.C64,
}


#: Separates a tensor's name from the number of a further slice of it: see docs/formats/image.md.
_FURTHER_SLICE = "\x1f"


def slice_name(name: str, number: int) -> str:
    """The name of a further slice of a tensor on one rank. The second slice has number 1."""
    return f"{name}{_FURTHER_SLICE}{number}"


def check_name(name: str) -> None:
    """Raises InvalidArgumentError for a tensor name that would be read as a further slice."""
    if _FURTHER_SLICE in name:
        raise InvalidArgumentError(f"{name!r}: the name of a tensor has no unit separator (U+001F), "
                                   f"which separates the slices of a tensor: rename the tensor")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of this rank, dense and row-major. It may be a box of a larger, global tensor.

    Attributes:
        name: unique in this rank; UTF-8, at most 4096 bytes.
        pointer: the address of the first element. It must stay valid until the client is closed.
        dtype: the type of the elements.
        shape: the shape of this rank's box.
        global_shape: the shape of the global tensor. None: the tensor is not sliced.
        offset: the offset of this box in the global tensor. None: zeros.
        owner: the object whose memory this is. The description keeps it alive.
    """

    name: str
    pointer: int
    dtype: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None = None
    offset: tuple[int, ...] | None = None
    device: int = Device.HOST
    device_index: int = 0
    owner: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, name: str, array: Any, *, global_shape: Sequence[int] | None = None,
           offset: Sequence[int] | None = None) -> Tensor:
        """Describes a NumPy array, or another object with `__array_interface__`.

        Raises:
            TypeError: the object has no such interface.
            ValueError: the array is not C-contiguous, or its element type cannot be saved.
        """
        interface = getattr(array, "__array_interface__", None)
        if interface is None:
            raise TypeError(f"'{name}': {type(array).__name__} has no __array_interface__")
        if interface.get("strides") is not None:
            raise ValueError(f"'{name}' is not contiguous: pass numpy.ascontiguousarray() of it")
        dtype = _NUMPY.get(interface["typestr"])
        if dtype is None:
            raise ValueError(f"'{name}' has elements of type {interface['typestr']}, which cannot "
                             f"be saved; these can: {', '.join(sorted(_NUMPY))}")
        return cls(name, interface["data"][0], dtype, tuple(interface["shape"]),
                   None if global_shape is None else tuple(global_shape),
                   None if offset is None else tuple(offset), owner=array)
