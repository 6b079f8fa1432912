"""What can go wrong: one exception class a code of holdfast.h, all of them `HoldfastError`."""

from __future__ import annotations

__all__ = [
    "HoldfastError", "InvalidArgumentError", "NotFoundError", "AlreadyExistsError",
    "PermissionDeniedError", "FailedPreconditionError", "ResourceExhaustedError", "OutOfSpaceError",
    "IoError", "DataLossError", "UnavailableError", "DeadlineExceededError", "AbortedError",
    "FencedError", "UnsupportedError", "CancelledError", "InternalError",
]


class HoldfastError(Exception):
    """Base of all errors of Holdfast.

    Attributes:
        code: the number in holdfast.h.
        message: what is wrong and what to do.
        asynchronous: True when an earlier operation failed in the background; the call that raises
            this has done its own work too. Each such failure is raised once.
        step: the step that an asynchronous failure concerns.
    """

    code: int = 16

    def __init__(self, message: str, *, asynchronous: bool = False, step: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.asynchronous = asynchronous
        self.step = step

    def __str__(self) -> str:
        if self.asynchronous:
            return f"{self.message} (in the background, step {self.step})"
        return self.message


class InvalidArgumentError(HoldfastError, ValueError):
    """Can never work as called."""

    code = 1


class NotFoundError(HoldfastError, LookupError):
    """Restore: the job has no version yet. Wait: that step was never saved by this client."""

    code = 2


class AlreadyExistsError(HoldfastError):
    """That step, or a later one, is saved already."""

    code = 3


class PermissionDeniedError(HoldfastError):
    """The message names path, owner and mode."""

    code = 4


class FailedPreconditionError(HoldfastError):
    """Not in this state, or in a forked child."""

    code = 5


class ResourceExhaustedError(HoldfastError):
    """No slot is free, or the state does not fit: with the numbers."""

    code = 6


class OutOfSpaceError(HoldfastError):
    """The disk of the node is full."""

    code = 7


class IoError(HoldfastError):
    """Reading or writing failed."""

    code = 8


class DataLossError(HoldfastError):
    """Bytes do not match their checksum."""

    code = 9


class UnavailableError(HoldfastError, ConnectionError):
    """The agent is not there; the client keeps trying in the background."""

    code = 10


class DeadlineExceededError(HoldfastError, TimeoutError):
    """It took longer than it was given."""

    code = 11


class AbortedError(HoldfastError):
    """Given up in favour of a newer version."""

    code = 12


class FencedError(HoldfastError):
    """A newer start of this job is running: this one must stop."""

    code = 13


class UnsupportedError(HoldfastError):
    """This build or this machine cannot do that."""

    code = 14


class CancelledError(HoldfastError):
    """Ended before it was done, because somebody asked for it."""

    code = 15


class InternalError(HoldfastError):
    """A defect in Holdfast; please report it."""

    code = 16


_BY_CODE = {cls.code: cls for cls in HoldfastError.__subclasses__()}


def make(code: int, message: str, asynchronous: bool, step: int) -> HoldfastError:
    """The exception for a code of holdfast.h; unknown codes are `InternalError`."""
    return _BY_CODE.get(code, InternalError)(message, asynchronous=asynchronous, step=step)
