"""One rank's connection to its node's agent."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from dataclasses import dataclass, field
from typing import Iterator, Mapping, NamedTuple, Sequence

from . import _native
from .arguments import check_job, check_step
from .errors import FailedPreconditionError, NotFoundError
from .tensors import Tensor

__all__ = ["Client", "Phase", "Piece", "Restored", "Tier", "Version", "View"]

_logger = logging.getLogger("holdfast")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


class Tier(enum.IntEnum):
    """Where a version is safe."""

    SEALED = 0  #: this rank's own shard is complete in its node's memory, whatever the others have
    MEMORY = 1  #: all ranks' shards are: the death of any process does no harm
    PEER = 2  #: and protected by parity on other nodes
    DISK = 3  #: on the disks, synced
    REMOTE = 4


class Phase(enum.IntEnum):
    """What a training process does that Holdfast should know of."""

    COLLECTIVE = 1
    INIT = 2
    COMPILE = 3
    CHECKPOINT = 4
    EVALUATION = 5


class Version(NamedTuple):
    """A committed state: the start of the job that saved it, counted from 1, and the step."""

    incarnation: int
    step: int

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.step}"


@dataclass(frozen=True)
class Restored:
    """What came back besides the tensors."""

    version: Version
    tier: Tier
    bytes: int
    extras: Mapping[str, bytes] = field(repr=False)


class Piece(NamedTuple):
    """One tensor of one shard, as the rank that saved it described it."""

    name: str
    rank: int
    dtype: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]


def _ms(seconds: float) -> int:
    return max(0, min(round(seconds * 1000), 0xFFFFFFFF))


class View:
    """A committed version seen whole: the slices of all ranks that saved it. Close it, or use
    `with`."""

    def __init__(self, client: Client, wanted: Version | None, timeout: float) -> None:
        self._client = client
        self._native = _native.View(client._native, wanted, _ms(timeout))

    @property
    def version(self) -> Version:
        return Version(*self._native.version)

    @property
    def tier(self) -> Tier:
        return Tier(self._native.tier)

    @property
    def world(self) -> int:
        """How many ranks saved it."""
        return self._native.world

    def pieces(self) -> list[Piece]:
        return [Piece(*piece) for piece in self._native.pieces()]

    def extras(self) -> dict[int, dict[str, bytes]]:
        """Rank → name → bytes."""
        result: dict[int, dict[str, bytes]] = {}
        for rank, name, data in self._native.extras():
            result.setdefault(rank, {})[name] = data
        return result

    def load(self, tensors: Sequence[Tensor], timeout: float = 120.0) -> None:
        """Fills host tensors, each a box of a whole by its name, from the pieces that overlap them.

        Raises:
            FailedPreconditionError: names every tensor that is missing, has another type or shape,
                or is not covered; nothing was written.
            UnavailableError, DataLossError: the tensors hold a mixture until a load succeeds.
        """
        self._native.load(tensors, _ms(timeout))

    def differences(self) -> list[str]:
        """All that the latest failed `load` found, one sentence each."""
        return self._client.differences()

    def close(self) -> None:
        self._native.close()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """One rank's client: describes its tensors once, then saves, guards and restores them.

    From `save` until `guard` returns the tensors must not change; their memory must stay valid
    until `close`. Calls are safe from several threads, except that nothing may overlap `close`. In
    a forked child every call raises `FailedPreconditionError` and does nothing. No call holds the
    interpreter's lock while it waits. Times are seconds.

    Args:
        job: [A-Za-z0-9._-]{1,128}.
        tensors: this rank's state.
        rank, world: this process and how many there are.
        run_id: names this start of the job, the same on all ranks, another at each start. None:
            $HOLDFAST_RUN_ID, and with a world of 1 one is made up.
        socket_path: of the agent. None: $HOLDFAST_SOCKET, else /run/holdfast/agent.sock.
        slots: versions held in memory at once, 2 at least.
        wait_for_slot: how long a save waits, in the background, when none is free; 0: it is
            skipped.
        connect_timeout: how long opening waits for the agent.
        agent_timeout: how long a save waits for the agent's answer, in the background.
        start_offline: open without an agent and keep trying.
        extra_bytes_max, extra_count_max: room for the extras of one save.
        copy_threads: of restore.

    Raises:
        InvalidArgumentError: every defect of arguments and tensors, named.
        ResourceExhaustedError: the state does not fit the agent's memory.
        UnavailableError: no agent within `connect_timeout`.
        PermissionDeniedError, FencedError.
    """

    def __init__(self, job: str, tensors: Sequence[Tensor], *, rank: int = 0, world: int = 1,
                 run_id: str | None = None, socket_path: str | None = None, slots: int = 3,
                 wait_for_slot: float = 0.0, connect_timeout: float = 10.0,
                 agent_timeout: float = 0.5, start_offline: bool = False,
                 extra_bytes_max: int = 1 << 20, extra_count_max: int = 16,
                 copy_threads: int = 2) -> None:
        # One more reference to the descriptions, and so to the owners of the memory.
        self._native = _native.Client(
            job=check_job(job), rank=rank, world=world, run_id=run_id, socket_path=socket_path,
            tensors=list(tensors), slots=slots, when_full=1 if wait_for_slot > 0 else 0,
            wait_ms=_ms(wait_for_slot), connect_timeout_ms=_ms(connect_timeout),
            agent_timeout_ms=_ms(agent_timeout), start_offline=start_offline,
            extra_bytes_max=extra_bytes_max, extra_count_max=extra_count_max,
            copy_threads=copy_threads)
        self._log_lock = threading.Lock()

    def _say(self) -> None:
        """Passes on what the library said to the logger `holdfast`: its own threads cannot."""
        if not self._log_lock.acquire(blocking=False):
            return
        try:
            for level, message in self._native.take_log():
                _logger.log(_LEVELS[level], "%s", message)
        finally:
            self._log_lock.release()

    def save(self, step: int, extras: Mapping[str, bytes] | None = None, *, stream: int = 0,
             wait_for_slot: float = 0.0) -> None:
        """Saves all tensors as version `step` of this start; returns at once. Steps must grow.

        Args:
            extras: small named bytes that belong to the version.
            stream: a cudaStream_t: device tensors are copied after the work queued on it so far.
                0: on the default streams of all devices that hold tensors.
            wait_for_slot: this save waits so long for a slot, in the background; for one that
                matters.

        Raises:
            UnavailableError: not connected; this step is not saved.
            ResourceExhaustedError: too many unfinished saves, or extras too large.
            AlreadyExistsError: the step is not greater than the last one.
            HoldfastError: with `asynchronous`, an earlier save that failed; this one is accepted.
        """
        try:
            self._native.save(check_step(step), list((extras or {}).items()), stream,
                              _ms(wait_for_slot))
        finally:
            self._say()

    def guard(self, stream: int = 0) -> None:
        """Call before the tensors change: returns when no copy reads them any more, and makes
        `stream` wait for the copies of device tensors."""
        self._native.guard(stream)

    def wait(self, step: int, tier: Tier = Tier.MEMORY, timeout: float = 60.0) -> None:
        """Waits until `step` or a later one is committed at `tier`; Ctrl-C ends it.

        Raises:
            DeadlineExceededError, ResourceExhaustedError (that step was skipped), AbortedError (a
            newer one overtook it, and none was committed in time), NotFoundError.
        """
        self._native.wait(step, tier, _ms(timeout))
        self._say()

    def latest(self, tier: Tier = Tier.MEMORY) -> Version | None:
        """The newest version this client knows to be committed at `tier`. Never blocks."""
        found = self._native.latest(tier)
        return None if found is None else Version(*found)

    def check_connection(self) -> None:
        """Raises why there is no connection (UnavailableError, FencedError, …). Never blocks."""
        self._native.connection()

    def restore(self, wanted: Version | None = None, timeout: float = 120.0) -> Restored | None:
        """Fills the tensors from a version that this world saved. None: the job has none, start
        fresh.

        Raises:
            InvalidArgumentError: the saved state differs from the description; `differences` has
            all;
                no tensor was touched.
            UnavailableError, DeadlineExceededError: it could not be found out. Not a fresh start.
        """
        try:
            found = self._native.restore(wanted, _ms(timeout))
        except NotFoundError:
            return None
        finally:
            self._say()
        return Restored(Version(*found["version"]), Tier(found["tier"]), found["bytes"],
                        found["extras"])

    def differences(self) -> list[str]:
        """All that the latest `restore` found, one sentence each."""
        return self._native.differences()

    def view(self, wanted: Version | None = None, timeout: float = 120.0) -> View | None:
        """The newest version that can be got back, or `wanted`, whatever its world; None: there is
        none.

        All ranks of one start get the same one.
        """
        try:
            return View(self, wanted, timeout)
        except NotFoundError:
            if wanted is not None:
                raise
            return None
        finally:
            self._say()

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Says what this process does meanwhile: a hint that costs some stores to memory."""
        self.begin_phase(phase)
        try:
            yield
        finally:
            self.end_phase(phase)

    def begin_phase(self, phase: Phase) -> None:
        """As `phase`, where begin and end are apart."""
        self._native.begin_phase(phase)

    def end_phase(self, phase: Phase) -> None:
        self._native.end_phase(phase)

    def stats(self) -> dict[str, int]:
        """Counters, named as in `holdfast_stats` of holdfast.h. Never blocks."""
        return self._native.stats()

    @property
    def closed(self) -> bool:
        return self._native.closed

    def close(self, timeout: float = 10.0) -> None:
        """Waits until the accepted saves are sealed by the agent, and ends the connection, whatever
        it raises: the first background failure of the client's life, or DeadlineExceededError."""
        try:
            self._native.close(_ms(timeout))
        except FailedPreconditionError:
            # A forked child has nothing to close.
            pass
        finally:
            self._say()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
