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

__all__ = ["Client", "Phase", "Piece", "Restored", "Tier", "Version", "VersionReader"]

_logger = logging.getLogger("holdfast")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


class Tier(enum.IntEnum):
    """A kind of storage that a version can be committed at."""

    SEALED = 0  #: this rank's own shard is complete in its node's memory; other ranks' may not be
    MEMORY = 1  #: all ranks' shards are in their nodes' memory and survive the death of any process
    PEER = 2  #: as MEMORY, and parity on other nodes protects the shards
    DISK = 3  #: all ranks' shards are on disk, synced
    REMOTE = 4


class Phase(enum.IntEnum):
    """What a training process does outside of training steps."""

    COLLECTIVE = 1
    INIT = 2
    COMPILE = 3
    CHECKPOINT = 4
    EVALUATION = 5


class Version(NamedTuple):
    """A committed state: the incarnation that saved it (the number of the job's start, from 1), and its
    step."""

    incarnation: int
    step: int

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.step}"


@dataclass(frozen=True)
class Restored:
    """The result of a restore, besides the tensors."""

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


class VersionReader:
    """Reads a committed version: the slices of all ranks that saved it, from any number of ranks.

    Close the reader, or use `with`.
    """

    def __init__(self, client: Client, wanted: Version | None, timeout: float) -> None:
        self._client = client
        self._native = _native.VersionReader(client._native, wanted, _ms(timeout))

    @property
    def version(self) -> Version:
        return Version(*self._native.version)

    @property
    def tier(self) -> Tier:
        return Tier(self._native.tier)

    @property
    def world(self) -> int:
        """The number of ranks that saved the version."""
        return self._native.world

    def own_pieces(self) -> list[Piece]:
        """The tensors of this rank's own shard. In a world of another size: those of the shard of
        rank (own rank modulo world)."""
        return [Piece(*piece) for piece in self._native.own_pieces()]

    def own_extras(self) -> dict[str, bytes]:
        """The extras of the shard of `own_pieces`."""
        return {name: data for _, name, data in self._native.own_extras()}

    def pieces(self, timeout: float = 120.0) -> list[Piece]:
        """The tensors of all shards. The time for this grows with the number of ranks that saved."""
        return [Piece(*piece) for piece in self._native.pieces(_ms(timeout))]

    def extras(self, timeout: float = 120.0) -> dict[int, dict[str, bytes]]:
        """The extras of all shards: rank → name → bytes. Costs as much as `pieces`."""
        result: dict[int, dict[str, bytes]] = {}
        for rank, name, data in self._native.extras(_ms(timeout)):
            result.setdefault(rank, {})[name] = data
        return result

    def tensors(self, timeout: float = 120.0) -> list[Piece]:
        """Returns each tensor of the version once, as described by the lowest rank that saved it.
        Rank-local tensors are listed once for each rank. For all other tensors the time, unlike
        that of `pieces`, does not grow with the number of ranks."""
        return [Piece(*piece) for piece in self._native.tensors(_ms(timeout))]

    def extra(self, rank: int, name: str, timeout: float = 120.0) -> bytes | None:
        """One extra of the shard of a rank. None if the shard has none of that name."""
        return self._native.extra(rank, name, _ms(timeout))

    def load(self, tensors: Sequence[Tensor], timeout: float = 120.0) -> None:
        """Fills host tensors from the pieces that overlap them. Each tensor is a box of the global
        tensor of its name.

        Raises:
            FailedPreconditionError: names every tensor that is missing, has another type or shape,
                or is not covered by pieces; no tensor was written.
            UnavailableError, DataLossError: the tensors hold a mixture of old and new values until
                a load succeeds.
        """
        self._native.load(tensors, _ms(timeout))

    def differences(self) -> list[str]:
        """All differences that the latest failed `load` found, one sentence each."""
        return self._client.differences()

    def close(self) -> None:
        self._native.close()

    def __enter__(self) -> VersionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """One rank's client: describes its tensors once, then saves, guards and restores them.

    The tensors must not change from `save` until `guard` returns. Their memory must stay valid
    until `close`. Calls are safe from several threads, except that no call may overlap `close`. In
    a forked child every call raises `FailedPreconditionError` and does nothing. No call holds the
    GIL while it waits. Times are in seconds.

    Args:
        job: [A-Za-z0-9._-]{1,128}.
        tensors: this rank's state.
        rank, world: the number of this process, and the number of processes.
        run_id: names this start of the job: the same on all ranks, a new one at each start. None:
            $HOLDFAST_RUN_ID; without that variable, a random ID if the world is 1.
        socket_path: the agent's socket. None: $HOLDFAST_SOCKET, else /run/holdfast/agent.sock.
        slots: the number of versions held in memory at once, at least 2.
        wait_for_slot: how long a save waits in the background for a free slot. 0: a save without a
            free slot is skipped.
        connect_timeout: how long the constructor waits for the agent.
        agent_timeout: how long a save waits in the background for the agent's answer.
        start_offline: open without an agent and keep trying to connect.
        extra_bytes_max, extra_count_max: limits on the extras of one save.
        copy_threads: the number of threads that copy during a restore.
        device_backend: the name of the device backend, for tensors on devices. None:
            $HOLDFAST_DEVICE_BACKEND, else "cuda".
        image_format: the format of the versions' headers: 1, or 2, which is shorter and which
            releases without format 2 cannot read. None: $HOLDFAST_IMAGE_FORMAT, else 1.

    Raises:
        InvalidArgumentError: names every defect of the arguments and tensors.
        ResourceExhaustedError: the state does not fit into the agent's memory.
        UnavailableError: no agent answered within `connect_timeout`.
        PermissionDeniedError, FencedError.
    """

    def __init__(self, job: str, tensors: Sequence[Tensor], *, rank: int = 0, world: int = 1,
                 run_id: str | None = None, socket_path: str | None = None, slots: int = 3,
                 wait_for_slot: float = 0.0, connect_timeout: float = 10.0,
                 agent_timeout: float = 0.5, start_offline: bool = False,
                 extra_bytes_max: int = 1 << 20, extra_count_max: int = 16,
                 copy_threads: int = 2, device_backend: str | None = None,
                 image_format: int | None = None) -> None:
        # The native client keeps this list, and thereby the owners of the memory, alive.
        self._native = _native.Client(
            job=check_job(job), rank=rank, world=world, run_id=run_id, socket_path=socket_path,
            device_backend=device_backend, tensors=list(tensors), slots=slots, when_full=1 if wait_for_slot > 0 else 0,
            wait_ms=_ms(wait_for_slot), connect_timeout_ms=_ms(connect_timeout),
            agent_timeout_ms=_ms(agent_timeout), start_offline=start_offline,
            extra_bytes_max=extra_bytes_max, extra_count_max=extra_count_max,
            copy_threads=copy_threads, image_format=image_format or 0)
        self._log_lock = threading.Lock()

    def _forward_log(self) -> None:
        """Passes the library's messages on to the logger `holdfast`. The library's own threads
        cannot call Python."""
        if not self._log_lock.acquire(blocking=False):
            return
        try:
            for level, message in self._native.take_log():
                _logger.log(_LEVELS[level], "%s", message)
        finally:
            self._log_lock.release()

    def save(self, step: int, extras: Mapping[str, bytes] | None = None, *, stream: int = 0,
             wait_for_slot: float = 0.0) -> None:
        """Saves all tensors as version `step` of this start. Returns at once. Steps must grow.

        Args:
            extras: small named byte strings that belong to the version.
            stream: a cudaStream_t. Device tensors are copied after the work queued on it so far. 0:
                after the work on the default streams of all devices that hold tensors.
            wait_for_slot: how long this save waits in the background for a free slot. Use it for a
                save that must not be skipped.

        Raises:
            UnavailableError: the client is not connected; this step is not saved.
            ResourceExhaustedError: there are too many unfinished saves, or the extras are too large.
            AlreadyExistsError: the step is not greater than the last one.
            HoldfastError: with `asynchronous` set, an earlier save failed; this save is accepted.
        """
        try:
            self._native.save(check_step(step), list((extras or {}).items()), stream,
                              _ms(wait_for_slot))
        finally:
            self._forward_log()

    def guard(self, stream: int = 0) -> None:
        """Blocks until no copy reads the host tensors any more, and makes `stream` wait for the
        copies of device tensors. Call this before the tensors change.

        Raises:
            HoldfastError: with `asynchronous` set, an earlier save failed, for example since the
                agent was restarted; no copy reads the tensors any more.
        """
        self._native.guard(stream)

    def wait(self, step: int, tier: Tier = Tier.MEMORY, timeout: float = 60.0) -> None:
        """Blocks until `step` or a later step is committed at `tier`. Ctrl-C ends the wait.

        Raises:
            DeadlineExceededError: neither was committed within `timeout`.
            ResourceExhaustedError: the step was skipped.
            AbortedError: a newer step superseded it, and none was committed in time.
            NotFoundError: this client never saved the step.
        """
        self._native.wait(step, tier, _ms(timeout))
        self._forward_log()

    def latest(self, tier: Tier = Tier.MEMORY) -> Version | None:
        """The newest version whose commit at `tier` was reported to this client. Never blocks."""
        found = self._native.latest(tier)
        return None if found is None else Version(*found)

    def check_connection(self) -> None:
        """Raises the reason if there is no connection (UnavailableError, FencedError, …). Never
        blocks."""
        self._native.connection()

    def restore(self, wanted: Version | None = None, timeout: float = 120.0) -> Restored | None:
        """Fills the tensors from a version that the same number of ranks saved. Returns None if the
        job has no version, which means a fresh start.

        Raises:
            NotFoundError: there is no committed version `wanted`.
            InvalidArgumentError: the saved state differs from the description; no tensor was
                changed. `differences` returns all differences.
            UnavailableError, DeadlineExceededError: it is unknown whether there is a version. This
                is not a fresh start.
        """
        try:
            found = self._native.restore(wanted, _ms(timeout))
        except NotFoundError:
            if wanted is not None:
                raise
            return None
        finally:
            self._forward_log()
        return Restored(Version(*found["version"]), Tier(found["tier"]), found["bytes"],
                        found["extras"])

    def differences(self) -> list[str]:
        """All differences that the latest `restore` found, one sentence each."""
        return self._native.differences()

    def open_version(self, wanted: Version | None = None,
                     timeout: float = 120.0) -> VersionReader | None:
        """Opens the newest restorable version, or `wanted`, saved by any world.

        All ranks of one start get the same version. Returns None if the job has no version.

        Raises:
            NotFoundError: there is no version `wanted`.
        """
        try:
            return VersionReader(self, wanted, timeout)
        except NotFoundError:
            if wanted is not None:
                raise
            return None
        finally:
            self._forward_log()

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Reports what this process does while the block runs. The cost is a few stores to memory."""
        self.begin_phase(phase)
        try:
            yield
        finally:
            self.end_phase(phase)

    def begin_phase(self, phase: Phase) -> None:
        """Begins a phase, for code where `phase` cannot enclose it. `end_phase` ends it."""
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
        """Blocks until the agent has sealed the accepted saves, then ends the connection.

        The connection ends even if this raises.

        Raises:
            DeadlineExceededError: not all saves were sealed within `timeout`.
            HoldfastError: the first background failure since the client was opened.
        """
        try:
            self._native.close(_ms(timeout))
        except FailedPreconditionError:
            # A forked child has nothing to close.
            pass
        finally:
            self._forward_log()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
