"""Checks of callers' arguments. Each error names the argument, its value and what is expected."""

from __future__ import annotations

import logging
import operator
import os
import re
from typing import Any

from .errors import InvalidArgumentError

__all__ = ["check_job", "check_step", "job_name"]

_logger = logging.getLogger("holdfast")
_JOB = re.compile(r"[A-Za-z0-9._-]{1,128}")
_STEP_MAX = (1 << 63) - 1


def job_name(given: str | None) -> str:
    """The checked name of the job. `given` None: the job of `holdfast run`."""
    of_run = os.environ.get("HOLDFAST_JOB")
    job = of_run if given is None else given
    if job is None:
        raise InvalidArgumentError("the job has no name: pass job=…, or start the program with "
                                   "`holdfast run --job …`, which sets HOLDFAST_JOB")
    check_job(job)
    if of_run is not None and given is not None and given != of_run:
        _logger.warning("versions are saved as job '%s', but `holdfast run` named this job '%s' "
                        "and restores versions of that name: leave out job=, or use the same name",
                        job, of_run)
    return job


def check_job(job: Any) -> str:
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise InvalidArgumentError(f"job={job!r}: a job's name has 1 to 128 of the characters A-Z, "
                                   f"a-z, 0-9, '.', '_' and '-'")
    return job


def check_step(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        raise InvalidArgumentError(f"step={step!r}: a step is an integer, not a "
                                   f"{type(step).__name__}") from None
    if not 0 <= number <= _STEP_MAX:
        raise InvalidArgumentError(f"step={number}: steps go from 0 to {_STEP_MAX}")
    return number
