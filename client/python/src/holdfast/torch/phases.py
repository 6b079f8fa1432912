"""Reports what this process does outside training steps, so that a pause is not taken for a hang."""

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
    """Begins a phase, which `end` ends. Phases nest, and may overlap between threads."""
    with _lock:
        _open[phase] += 1
        for client in _clients:
            _report(client.begin_phase, phase)


def end(phase: Phase) -> None:
    """Ends a phase. Does nothing if it is not open."""
    with _lock:
        if _open[phase] == 0:
            return
        _open[phase] -= 1
        for client in _clients:
            _report(client.end_phase, phase)


@contextlib.contextmanager
def phase(phase: Phase) -> Iterator[None]:
    """Marks work on this rank that is not a training step:

        with hf.phase(hf.Phase.EVALUATION):
            evaluate(model)

    The other ranks may wait for any time meanwhile, and no incident is opened. Holdfast's
    integrations already mark evaluation, compilation, saving and restoring (docs/frameworks.md). The
    cost is a few stores to memory.
    """
    begin(phase)
    try:
        yield
    finally:
        end(phase)


def marked(which: Phase) -> Callable[[_Function], _Function]:
    """A decorator: each call of the function is a phase."""
    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            begin(which)  # without the context manager, since save() has one millisecond
            try:
                return function(*arguments, **named)
            finally:
                end(which)
        return call  # type: ignore[return-value]
    return decorate


def follow(client: Client) -> None:
    """Reports all further phases to this client, and those that are open now."""
    follow_compiler()
    with _lock:
        _clients.add(client)
        for phase, times in _open.items():
            for _ in range(times):
                _report(client.begin_phase, phase)


def follow_compiler() -> None:
    """Registers callbacks that mark compilations of torch.compile, once torch._dynamo is imported."""
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


def _report(hint: Callable[[Phase], None], phase: Phase) -> None:
    try:
        hint(phase)
    except HoldfastError:
        pass  # the client is closed, or belongs to the parent process
