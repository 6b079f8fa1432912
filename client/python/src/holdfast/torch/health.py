"""What became of saves in the background: counted and logged, so that training goes on."""

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
    message: str  #: of the last one
    step: int  #: of the last one


@dataclass(frozen=True)
class Health:
    """How saving goes, as this rank knows it."""

    connected: bool  #: to the agent of this node
    reason: str  #: why not, else empty
    newest: Mapping[Tier, Version]  #: by tier, of this start
    failures: Mapping[str, Failures] = field(default_factory=dict)  #: by the error's class
    skipped: int = 0  #: saves for which there was no memory free, or no answer in time

    @property
    def ok(self) -> bool:
        return self.connected and not self.failures


class FailureLog:
    """Failures by kind; the first of a kind is logged as a warning, later ones once in a while."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.kinds: dict[str, Failures] = {}

    def add(self, error: HoldfastError, step: int | None = None) -> None:
        kind = type(error).__name__
        more = _MORE.search(error.message)
        before = self.kinds[kind].count if kind in self.kinds else 0
        count = before + 1 + (int(more[1]) if more else 0)
        self.kinds[kind] = Failures(count, error.message, error.step if step is None else step)
        # At 1, 2, 4, 8, …: a disk that is full for a day fills no log.
        if before.bit_length() < count.bit_length():
            _logger.warning("job %s, %d× %s: %s", self._job, count, kind, error)
