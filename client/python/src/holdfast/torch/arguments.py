"""Checks the state that a caller passes."""

from __future__ import annotations

from typing import Any, Mapping

from ..errors import InvalidArgumentError
from .identity import Replicated

__all__ = ["unwrapped"]


def unwrapped(state: Any) -> dict[str, Any]:
    """The state, with the objects that accelerate wraps taken out of their wrappers."""
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"state is a {type(state).__name__}: pass a dictionary such as "
                                   f"{{'model': model, 'optim': optimizer}}")
    for name in state:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"state[{name!r}]: the name of an entry must be a string")
    return {name: _inner(thing) for name, thing in state.items()}


def _inner(thing: Any) -> Any:
    if isinstance(thing, Replicated):
        return Replicated(_inner(thing.thing))
    # Compared by name, since accelerate may not be installed.
    if type(thing).__module__.partition(".")[0] != "accelerate":
        return thing
    for wrapper, attribute in (("AcceleratedOptimizer", "optimizer"),
                               ("AcceleratedScheduler", "scheduler")):
        if any(base.__name__ == wrapper for base in type(thing).__mro__):
            return getattr(thing, attribute)
    return thing
