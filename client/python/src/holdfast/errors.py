"""The exceptions: one class for each error code of holdfast.h, all derived from `HoldfastError`."""

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
        code: the error's number in holdfast.h.
        message: what is wrong and what to do.
        asynchronous: True if an earlier operation failed in the background. The call that raises
            the error has still done its own work. Each such failure is raised once.
        step: the step of the asynchronous failure.
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
    """The call cannot succeed with these arguments."""

    code = 1


class NotFoundError(HoldfastError, LookupError):
    """Restore: the job has no version yet. Wait: this client never saved that step."""

    code = 2


class AlreadyExistsError(HoldfastError):
    """The step, or a later one, is already saved."""

    code = 3


class PermissionDeniedError(HoldfastError):
    """Access was denied. The message names path, owner and mode."""

    code = 4


class FailedPreconditionError(HoldfastError):
    """The call is not possible in this state, or in a forked child."""

    code = 5


class ResourceExhaustedError(HoldfastError):
    """No slot is free, or the state does not fit. The message has the numbers."""

    code = 6


class OutOfSpaceError(HoldfastError):
    """The disk of the node is full."""

    code = 7


class IoError(HoldfastError):
    """A read or a write failed."""

    code = 8


class DataLossError(HoldfastError):
    """Bytes do not match their checksum."""

    code = 9


class UnavailableError(HoldfastError, ConnectionError):
    """The agent does not answer. The client keeps trying to connect in the background."""

    code = 10


class DeadlineExceededError(HoldfastError, TimeoutError):
    """The operation did not finish within its timeout."""

    code = 11


class AbortedError(HoldfastError):
    """The version was abandoned for a newer one."""

    code = 12


class FencedError(HoldfastError):
    """A newer start of this job is running. This process must stop."""

    code = 13


class UnsupportedError(HoldfastError):
    """This build or this machine does not support the operation."""

    code = 14


class CancelledError(HoldfastError):
    """The operation was cancelled on request."""

    code = 15


class InternalError(HoldfastError):
    """A defect in Holdfast; please report it."""

    code = 16


_BY_CODE = {cls.code: cls for cls in HoldfastError.__subclasses__()}


def make(code: int, message: str, asynchronous: bool, step: int) -> HoldfastError:
    """Makes the exception for a code of holdfast.h. Unknown codes become `InternalError`."""
    return _BY_CODE.get(code, InternalError)(message, asynchronous=asynchronous, step=step)
