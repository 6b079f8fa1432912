"""Describing tensors: where their memory is and what part of which whole they are."""

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
        """Of one element."""
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


#: Between the name of a tensor and the number of a further slice of it: see docs/formats/image.md.
_FURTHER_SLICE = "\x1f"


def slice_name(name: str, number: int) -> str:
    """What the second slice (1) of a tensor on a rank is called, and those after it."""
    return f"{name}{_FURTHER_SLICE}{number}"


def check_name(name: str) -> None:
    """Raises InvalidArgumentError for names of tensors that would be taken for further slices."""
    if _FURTHER_SLICE in name:
        raise InvalidArgumentError(f"{name!r}: a name of a tensor has no unit separator (U+001F), "
                                   f"which tells slices of one apart")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of this rank, dense and row-major; a box of a whole that ranks may share.

    Attributes:
        name: unique in this rank; UTF-8, at most 4096 bytes.
        pointer: address of the first element. It must stay valid until the client is closed.
        dtype: the elements' type.
        shape: of this rank's part.
        global_shape: of the tensor that this is a box of; None: not sliced.
        offset: of this box in it; None: zeros.
        owner: kept alive as long as the description is: the object whose memory this is.
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
        """Describes a NumPy array, or what else has `__array_interface__`.

        Raises:
            TypeError: it has no such interface.
            ValueError: it is not C-contiguous, or of a type that has no name here.
        """
        interface = getattr(array, "__array_interface__", None)
        if interface is None:
            raise TypeError(f"'{name}': {type(array).__name__} has no __array_interface__")
        if interface.get("strides") is not None:
            raise ValueError(f"'{name}' is not contiguous: give numpy.ascontiguousarray of it")
        dtype = _NUMPY.get(interface["typestr"])
        if dtype is None:
            raise ValueError(f"'{name}' has elements of type {interface['typestr']}, which cannot "
                             f"be saved; these can: {', '.join(sorted(_NUMPY))}")
        return cls(name, interface["data"][0], dtype, tuple(interface["shape"]),
                   None if global_shape is None else tuple(global_shape),
                   None if offset is None else tuple(offset), owner=array)
