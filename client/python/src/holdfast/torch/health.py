"""Background failures of saves. They are counted and logged, and training goes on."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Mapping

from ..client import Tier, Version
from ..errors import HoldfastError

__all__ = ["Failures", "Health"]

_logger = logging.getLogger("holdfast")
_MORE = re.compile(r" \(and (\d+) more since\)")


@dataclass(frozen=True)
class Failures:
    """All failures of one kind."""

    count: int
    message: str  #: of the last failure
    step: int  #: of the last failure


@dataclass(frozen=True)
class Health:
    """The state of saving on this rank."""

    connected: bool  #: whether this rank is connected to the agent of its node
    reason: str  #: why it is not connected, else empty
    newest: Mapping[Tier, Version]  #: the newest committed version by tier, of this start of the job
    failures: Mapping[str, Failures] = field(default_factory=dict)  #: by the name of the error's class
    skipped: int = 0  #: saves that found no free memory or got no answer in time

    @property
    def ok(self) -> bool:
        return self.connected and not self.failures


class FailureLog:
    """Failures by kind. The 1st, 2nd, 4th, 8th … of a kind is logged as a warning."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.kinds: dict[str, Failures] = {}

    def add(self, error: HoldfastError, step: int | None = None) -> None:
        kind = type(error).__name__
        more = _MORE.search(error.message)
        before = self.kinds[kind].count if kind in self.kinds else 0
        count = before + 1 + (int(more[1]) if more else 0)
        self.kinds[kind] = Failures(count, error.message, error.step if step is None else step)
        # At 1, 2, 4, 8, …: a disk that is full for a day does not flood the log.
        if before.bit_length() < count.bit_length():
            _logger.warning("job %s, %d× %s: %s", self._job, count, kind, error)
