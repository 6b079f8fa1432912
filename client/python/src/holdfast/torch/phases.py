"""What this process does beside training steps, so that a pause is not taken for a hang."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, TypeVar

from ..client import Client, Phase
from ..errors import HoldfastError

__all__ = ["phase"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_lock = threading.Lock()
_open: collections.Counter[Phase] = collections.Counter()
_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_follows_compiler = False


def begin(phase: Phase) -> None:
    """`end` follows. Phases nest, and overlap over threads."""
    with _lock:
        _open[phase] += 1
        for client in _clients:
            _tell(client.begin_phase, phase)


def end(phase: Phase) -> None:
    with _lock:
        if _open[phase] == 0:
            return
        _open[phase] -= 1
        for client in _clients:
            _tell(client.end_phase, phase)


@contextlib.contextmanager
def phase(phase: Phase) -> Iterator[None]:
    """Work that makes no step, on this rank:

        with hf.phase(hf.Phase.EVALUATION):
            evaluate(model)

    The other ranks may wait meanwhile, for as long as it takes, without an incident. Evaluation,
    compilation, saving and restoring are known already where Holdfast's integrations see them
    (docs/frameworks.md). Costs some stores to memory.
    """
    begin(phase)
    try:
        yield
    finally:
        end(phase)


def marked(which: Phase) -> Callable[[_Function], _Function]:
    """The function is such a phase."""
    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with phase(which):
                return function(*arguments, **named)
        return call  # type: ignore[return-value]
    return decorate


def follow(client: Client) -> None:
    """From now on this client tells of phases, those that are open included."""
    follow_compiler()
    with _lock:
        _clients.add(client)
        for phase, times in _open.items():
            for _ in range(times):
                _tell(client.begin_phase, phase)


def follow_compiler() -> None:
    """torch.compile says when it compiles, also again, once it was imported."""
    global _follows_compiler
    if _follows_compiler or "torch._dynamo" not in sys.modules:
        return
    _follows_compiler = True
    # Older versions of torch have no such callbacks.
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    if handler is None:
        return
    handler.register_start_callback(lambda *_: begin(Phase.COMPILE))
    handler.register_end_callback(lambda *_: end(Phase.COMPILE))


def _tell(hint: Callable[[Phase], None], phase: Phase) -> None:
    # A client that is closed, or another process's, has nobody to tell.
    with contextlib.suppress(HoldfastError):
        hint(phase)
