"""Records of this process's steps and communication, for the detection of hangs and stragglers. Jobs
on NCCL need none of this: they set NCCL_PROFILER_PLUGIN=holdfast.

Recording stores to memory and cannot fail. Records that do not fit are dropped and counted. All
functions also work before a client exists.
"""

from __future__ import annotations

import contextlib
import enum
from typing import Iterator, Sequence

from . import _native

__all__ = ["Kind", "Role", "collective", "describe_communicator", "forget_communicator", "step"]

_NO_DTYPE = 255


class Kind(enum.IntEnum):
    OTHER = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    ALL_TO_ALL = 6
    SEND = 7
    RECEIVE = 8
    BARRIER = 9


class Role(enum.IntEnum):
    """The purpose of a communicator. The detector compares ranks with the same role."""

    UNKNOWN = 0
    DATA = 1
    TENSOR = 2
    PIPELINE = 3
    EXPERT = 4


def step(number: int) -> None:
    """Records that the trainer begins this step and has ended the previous one. A save records the same."""
    _native.step(number)


def describe_communicator(id: int, members: Sequence[int], index: int,
                          role: Role = Role.UNKNOWN) -> None:
    """Describes a communicator. Call this before its first operation.

    Args:
        id: the same number on all members. 0 is reserved for the communicator of all ranks.

    Raises:
        InvalidArgumentError: the description is inconsistent.
        ResourceExhaustedError: there are more than 128 communicators at once.
    """
    _native.communicator_describe(id, len(members), index, list(members), role)


def forget_communicator(id: int) -> None:
    """Removes the description of a communicator."""
    _native.communicator_forget(id)


@contextlib.contextmanager
def collective(kind: Kind, bytes: int = 0, *, communicator: int = 0,
               peer: int | None = None) -> Iterator[None]:
    """Records an operation of this rank while the block runs. `peer` is the root or the other end, as
    an index in the communicator."""
    operation = _native.collective_begin(communicator, kind, bytes, _NO_DTYPE, peer, None)
    try:
        yield
    except BaseException:
        _native.collective_abandon(operation)
        raise
    _native.collective_end(operation)
