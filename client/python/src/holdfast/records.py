"""What this process tells of its steps and of its communication, so that a rank that hangs or is
slow can be found. Jobs on NCCL need none of this: they set NCCL_PROFILER_PLUGIN=holdfast.

Calls store to memory and cannot fail; what finds no room is left out and counted. They work before
there is a client, too.
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
    """What a communicator is for: ranks with the same part are compared with each other."""

    UNKNOWN = 0
    DATA = 1
    TENSOR = 2
    PIPELINE = 3
    EXPERT = 4


def step(number: int) -> None:
    """The trainer begins this step; the one before is over. A save says so too."""
    _native.step(number)


def describe_communicator(id: int, members: Sequence[int], index: int,
                          role: Role = Role.UNKNOWN) -> None:
    """Before the first operation in it. `id`: the same on all members, not 0, which is all ranks.

    Raises:
        InvalidArgumentError, ResourceExhaustedError (more than 128 at once).
    """
    _native.communicator_describe(id, len(members), index, list(members), role)


def forget_communicator(id: int) -> None:
    _native.communicator_forget(id)


@contextlib.contextmanager
def collective(kind: Kind, bytes: int = 0, *, communicator: int = 0,
               peer: int | None = None) -> Iterator[None]:
    """Records an operation of this rank while the block runs. `peer`: the root or the other end, by
    its index in the communicator."""
    operation = _native.collective_begin(communicator, kind, bytes, _NO_DTYPE, peer, None)
    try:
        yield
    except BaseException:
        _native.collective_abandon(operation)
        raise
    _native.collective_end(operation)
