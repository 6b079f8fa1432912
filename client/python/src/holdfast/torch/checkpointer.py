"""Checkpointer: saves the complete state of a training loop while the loop goes on."""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import logging
import os
import time
import weakref
from typing import Any, Callable, Iterator, Mapping

import torch
import torch.distributed as dist

from ..arguments import check_step, job_name
from ..client import Client, Phase, Tier, Version, VersionReader
from ..errors import (AlreadyExistsError, DeadlineExceededError, FailedPreconditionError,
                      FencedError, HoldfastError, InvalidArgumentError, PermissionDeniedError,
                      UnavailableError, UnsupportedError)
from ..tensors import Tensor
from . import phases, random_state, values
from .arguments import unwrapped
from .health import FailureLog, Health
from .identity import Replicated, of_rank
from .parts import OptimizerPart, parts_of
from .plan import Plan, agree, agreed_run_id
from .reshape import Decisions
from .restoring import Comparison, fill_from_reader
from .samples import EXTRA as _SAMPLES, EXTRA_BYTES_MAX, ReplicaSamples, Rotation
from .saved import LAYOUT as _LAYOUT, STATE as _STATE, Saved, StateMismatchError
from .snapshot import Snapshot

__all__ = ["Checkpointer"]

_logger = logging.getLogger("holdfast")
#: The same number as torch.cuda.current_stream().cuda_stream, without an object for the stream. Compiled code of
#: PyTorch and Triton uses it, too. None: not in this build of PyTorch.
_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_FORMAT = 2
_EXTRA_BYTES_MIN = 1 << 20
_RETRY_PAUSE_MAX = 30.0
_ABSENT_S = 0.001
#: Errors that save() raises, since the caller must act. Other errors cost at most one version.
_RAISED = (AlreadyExistsError, FailedPreconditionError, FencedError, InvalidArgumentError,
           PermissionDeniedError, UnsupportedError)
#: From this size on, rank-local tensors are logged as a warning.
_NOTED_BYTES = 1 << 20


def _rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Checkpointer:
    """Saves and restores a training state through this node's Holdfast agent.

        ckpt = Checkpointer("nanogpt", {"model": model, "optim": optim, "sched": sched})
        for step in range(ckpt.restore(), total):
            train_step(...)
            ckpt.save(step)        # returns at once
        ckpt.close()

    The checkpointer saves parameters, buffers, optimizer state, random generators, and objects with
    state_dict() and load_state_dict(). It supports plain modules, DistributedDataParallel,
    fully_shard and tensor parallel modules. A known replica is saved once, cut into one part for
    each rank that holds it. Known replicas are the replicated parts of DTensors, the modules in
    DistributedDataParallel, and entries declared with `holdfast.torch.replicated`. Each rank saves
    and restores all other tensors for itself. Nothing is pickled.

    Tensors must not change between save() and the guard, which waits for the copy. Each optimizer
    of the state calls the guard automatically before its step. Call `guard()` before you change
    parameters in another way. Buffers are copied within save() and may change at any time.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same on all ranks and at each start. None: $HOLDFAST_JOB,
            which `holdfast run` sets to its own --job.
        state: name → module, optimizer, tensor, dictionary of tensors and values, or anything with
            state_dict() and load_state_dict().
        rank, world, run_id: None: taken from torch.distributed if it is initialised, else from the
            environment of torchrun and `holdfast run`.
        guard_steps: False: you call `guard()` yourself before each optimizer step.
        random_states: also save the random generators of Python, NumPy and torch.
        allow_pickle: pickle values that have no JSON form, and load pickles from checkpoints. A
            pickle can run any code: use this only for checkpoints whose writers you trust.
        on_reshape: how to restore rank-local tensors into another number of ranks. Keys are entries
            of the state, or beginnings of tensor names up to a dot. Values are "first" (the lowest
            rank's values), "mean", "zero" and "drop" (the state's own tensors stay unchanged).
            Without an entry for a tensor, such a restore raises StateMismatchError, which names it.
        trainable_only: leave out parameters of modules that need no gradient.
        client_options: further arguments of `holdfast.Client`, such as socket_path and slots.

    Raises:
        UnsupportedValueError: an entry of the state has a type that cannot be saved; the message
            names it.
    """

    def __init__(self, job: str | None = None, state: Mapping[str, Any] | None = None, *,
                 rank: int | None = None, world: int | None = None, run_id: str | None = None,
                 guard_steps: bool = True, random_states: bool = True, allow_pickle: bool = False,
                 on_reshape: Mapping[str, str] | None = None, trainable_only: bool = False,
                 **client_options: Any) -> None:
        found_rank, found_world = _rank_and_world()
        self.job = job_name(job)
        self.rank = found_rank if rank is None else rank
        self.world = found_world if world is None else world
        #: The version that restore() restored. None after a fresh start.
        self.restored: Version | None = None
        self._run_id = run_id
        unknown = client_options.keys() - inspect.signature(Client).parameters.keys()
        if unknown:
            raise InvalidArgumentError(f"Checkpointer has no option {', '.join(sorted(unknown))}")
        self._options = client_options
        self._allow_pickle = allow_pickle
        self._random_states = random_states
        state = unwrapped(state)
        self._parts = parts_of(state, allow_pickle, trainable_only)
        self._decisions = Decisions(on_reshape, state)
        self._client: Client | None = None
        self._snapshot: Snapshot | None = None
        self._plan: Plan | None = None
        self._samples: ReplicaSamples | None = None
        self._rotation = Rotation()
        self._layout = b""
        self._extra_bytes = _EXTRA_BYTES_MIN
        self._failures = FailureLog(self.job)
        #: An agent has answered once. From then on its absence only costs saves.
        self._agent_answered = False
        #: The last connection was healthy when it was closed.
        self._was_connected = True
        #: The agent has accepted the description of the state once.
        self._described = False
        self._retry_at, self._retry_pause = 0.0, 1.0
        #: Whether save() was called in this start of the job, and the version that restore() chose in it.
        self._saving = False
        self._restarts = 0
        self._graphs_checked = False
        self._chosen: Version | None = None
        self._pid = os.getpid()
        self._closed = False
        self._hooks = []
        if guard_steps:
            me = weakref.ref(self)
            self._hooks = [thing.register_step_pre_hook(lambda *_: _guard_before_step(me))
                           for thing in map(_undeclared, state.values())
                           if isinstance(thing, torch.optim.Optimizer)]
        _open_checkpointers.add(self)

    # ------------------------------------------------------------------------------ describing

    def _connect(self, snapshot: Snapshot) -> None:
        """Describes the state to the agent: at first, and again when addresses or sizes have
        changed."""
        self._snapshot = None
        client, self._client = self._client, None
        if client is not None:
            self._was_connected = not _why_not_connected(client)
            # close() waits until the accepted saves are sealed. After that no copy reads the old memory.
            self._close_client(client, 60.0)
        if self._plan is None:
            self._plan = agree(snapshot, self.rank, self.world)
            self._log_rank_local_tensors(snapshot)
        self._layout = values.dumps({
            "format": _FORMAT, "world": self.world,
            "aliases": snapshot.saved_aliases(self._plan),
            "types": snapshot.real_dtypes(self._plan),
            "own": [name for name, stored in snapshot.stored.items()
                    if self._plan.disagreed(stored)],
            "held": snapshot.held_without_rows(self._plan),
            "complete": snapshot.saves_all(self._plan),
            "parts": {part.name: part.layout() for part in self._parts}})
        self._extra_bytes = max(self._extra_bytes, 2 * len(self._layout) + _EXTRA_BYTES_MIN)
        options: dict[str, Any] = {}
        if self._agent_answered:
            # A missing agent is not an error now, and nothing waits for it.
            options["start_offline"] = True
            if not self._was_connected:
                options["connect_timeout"] = _ABSENT_S
        self._samples = ReplicaSamples(snapshot, self._plan, self.rank)
        copies = [] if self._samples.tensor is None else [self._samples.tensor]
        self._open(snapshot.describe(self._plan) + copies, **options)
        self._snapshot = snapshot
        self._described = True

    def _open(self, tensors: list[Tensor], **options: Any) -> None:
        self._client = Client(self.job, tensors, rank=self.rank, world=self.world,
                              run_id=self._name_start(), extra_bytes_max=self._extra_bytes,
                              **{**self._options, **options})
        phases.follow(self._client)
        self._agent_answered |= not _why_not_connected(self._client)

    def _name_start(self) -> str | None:
        """The run ID of this start of the job, None if unknown. The first call is a collective."""
        if self._run_id is None and not os.environ.get("HOLDFAST_RUN_ID"):
            self._run_id = agreed_run_id(self.world)
        return self._run_id

    def _close_client(self, client: Client, timeout: float) -> None:
        """Closes the client. Background failures and unsealed saves are counted and logged."""
        try:
            client.close(timeout)
        except HoldfastError as error:
            self._failures.add(error)

    def _log_rank_local_tensors(self, snapshot: Snapshot) -> None:
        assert self._plan is not None
        disagreed = [name for name, stored in snapshot.stored.items()
                     if self._plan.disagreed(stored)]
        if disagreed:
            _logger.warning("job %s: tensors that all ranks should hold in the same form differ "
                            "(%s; %d tensors in all): each rank saves its own", self.job, disagreed[0],
                            len(disagreed))
        by_entry: dict[str, int] = {}
        for name, stored in snapshot.stored.items():
            if self._plan.qualifier(stored) == of_rank(self.rank):
                entry = name.partition(".")[0]
                by_entry[entry] = by_entry.get(entry, 0) + stored.box.bytes
        total = sum(by_entry.values())
        if total > 0 and self.world > 1:
            _logger.log(logging.WARNING if total >= _NOTED_BYTES else logging.INFO,
                        "job %s: rank %d saves %d bytes of rank-local tensors (%s). If an entry "
                        "is equal on all ranks, declare it to save it once: "
                        "state={'%s': hf.replicated(…)}",
                        self.job,
                        self.rank, total,
                        ", ".join(f"{entry}: {size}" for entry, size in by_entry.items()),
                        max(by_entry, key=by_entry.__getitem__))

    def _current_snapshot(self) -> Snapshot:
        """The description of the current state, with a client for it."""
        self._check_usable()
        if self._snapshot is None or not self._snapshot.still_holds():
            self._connect(Snapshot(self._parts, self.rank, self.world))
        assert self._snapshot is not None
        return self._snapshot

    def _stream(self, snapshot: Snapshot) -> int:
        if not snapshot.on_device:
            return 0
        if _raw_stream is None:
            return torch.cuda.current_stream().cuda_stream
        return _raw_stream(torch.cuda.current_device())

    def _check_usable(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the checkpointer is closed")
        if self._pid != os.getpid():
            raise FailedPreconditionError("the checkpointer belongs to the process that this one was "
                                          "forked from: create another one here")

    # ---------------------------------------------------------------------------------- saving

    @phases.marked(Phase.CHECKPOINT)
    def save(self, step: int, *, wait_for_slot: float = 0.0) -> bool:
        """Saves the state as version `step`. Returns at once. Steps must grow.

        The first call, and the first call after tensors were replaced, describes the state. That
        takes longer than a save. The very first call is a collective of all ranks.

        Args:
            wait_for_slot: seconds that this save may wait in the background for a free slot. 0: a
                save without a free slot is skipped. Use it for a save that must not be skipped.

        Returns:
            False if this step is not saved, because the agent does not answer or is overloaded.
            Training goes on, and the client reconnects automatically. Failures in the background,
            such as a full disk, are logged and counted: see health().

        Raises:
            FencedError: a newer start of the job is running.
            AlreadyExistsError: `step` is not greater than the last one.
            UnavailableError: no agent has ever answered.
            UnsupportedError, UnsupportedValueError, InvalidArgumentError: names what cannot be
                saved.
        """
        check_step(step)
        phases.follow_compiler()
        self._saving = True
        self._rotation.advance(step)
        try:
            snapshot = self._ready()
            if snapshot is None:
                return False
            if snapshot.on_device:
                self._check_graphs()
            extras = {_LAYOUT: self._layout, _STATE: self._capture()}
            size = sum(map(len, extras.values()))
            if size + EXTRA_BYTES_MAX > self._extra_bytes:
                self._extra_bytes = 2 * (size + EXTRA_BYTES_MAX)
                self._connect(snapshot)
            return self._submit(step, snapshot, extras, wait_for_slot)
        except _RAISED:
            raise
        except HoldfastError as error:
            # Until the first description succeeds, a missing agent or too little memory is an error.
            if not (self._described or self._agent_answered and isinstance(error, UnavailableError)):
                raise
            self._failures.add(error, step)
            return False

    def _check_graphs(self) -> None:
        """Rejects a save within a capture, and warns about optimizers that may be part of a CUDA
        graph: the replay of a graph does not run the optimizer's hook."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise FailedPreconditionError("save() while a CUDA graph is captured: the captured work "
                                          "does not run now, so there is nothing to save. Save "
                                          "before or after the capture")
        if not self._graphs_checked:
            self._graphs_checked = True
            names = [part.name for part in self._parts if isinstance(part, OptimizerPart) and any(
                group.get("capturable") for group in part.optimizer.param_groups)]
            if names:
                _logger.warning("job %s: '%s' is capturable. If its step is part of a CUDA graph, "
                                "call ckpt.guard() before each graph.replay(): a replay during "
                                "the copy corrupts the version", self.job, "', '".join(names))

    def _ready(self) -> Snapshot | None:
        """The current snapshot, with a client that is connected or connecting. None: the agent
        refused the description recently, for example for lack of memory."""
        if self._described and self._snapshot is None and time.monotonic() < self._retry_at:
            return None
        try:
            snapshot = self._current_snapshot()
        except HoldfastError:
            self._retry_at = time.monotonic() + self._retry_pause
            self._retry_pause = min(2 * self._retry_pause, _RETRY_PAUSE_MAX)
            raise
        self._retry_pause = 1.0
        return snapshot

    def _capture(self) -> bytes:
        """The state except its tensors, as JSON."""
        # Joined once, since the result can have several hundred kilobytes.
        pieces, gap = [b'{"parts":{'], b""
        for part in self._parts:
            pieces += gap, values.dumps(part.name), b":", part.capture_json()
            gap = b","
        pieces.append(b"}")
        if self._random_states:
            pieces += b',"random":', random_state.capture_json()
        pieces.append(b"}")
        return b"".join(pieces)

    def _submit(self, step: int, snapshot: Snapshot, extras: dict[str, bytes],
                   wait_for_slot: float) -> bool:
        assert self._client is not None
        stream = self._stream(snapshot)
        if wait_for_slot > 0:
            self._await_slot(wait_for_slot)
        assert self._samples is not None
        if snapshot.staged or self._samples.tensor is not None:
            self._guard_quietly()
        for stored in snapshot.staged:
            stored.stage()
        if self._samples.count > 0:
            extras = {**extras, _SAMPLES: self._samples.take(self._rotation.number)}
        try:
            self._client.save(step, extras, stream=stream, wait_for_slot=wait_for_slot)
        except FencedError:
            raise
        except HoldfastError as error:
            if not error.asynchronous:
                raise
            self._failures.add(error)  # of an earlier save; this one is accepted
        return True

    def _await_slot(self, seconds: float) -> None:
        """Blocks while as many saves are pending as there are slots, for at most `seconds`."""
        assert self._client is not None
        deadline = time.monotonic() + seconds
        slots = self._options.get("slots", 3)
        while self._client.stats()["pending"] >= slots and time.monotonic() < deadline:
            time.sleep(0.001)

    def guard(self) -> None:
        """Blocks until the last save's copy no longer reads the tensors.

        Call this before you change tensors of the state other than through an optimizer of the
        state.

        Raises:
            HoldfastError: the device has failed.
        """
        try:
            if self._client is not None and self._snapshot is not None \
                    and self._pid == os.getpid():
                self._client.guard(self._stream(self._snapshot))
        except HoldfastError as error:
            if not error.asynchronous:
                raise
            self._failures.add(error)

    def _guard_quietly(self) -> None:
        try:
            self.guard()
        except HoldfastError as error:
            self._failures.add(error)  # the optimizer step must not fail

    def wait(self, step: int, tier: Tier = Tier.MEMORY, timeout: float = 60.0) -> None:
        """Blocks until `step` or a later one is committed at `tier`; see `holdfast.Client.wait`."""
        self._check_usable()
        if self._client is None:
            raise FailedPreconditionError("nothing was saved yet: call save() first")
        self._client.wait(step, tier, timeout)

    def latest(self, tier: Tier = Tier.MEMORY) -> Version | None:
        """The newest version whose commit at `tier` was reported to this rank."""
        return None if self._client is None else self._client.latest(tier)

    def health(self) -> Health:
        """Returns whether the agent is connected, the newest committed versions, and the background
        failures. Never blocks."""
        newest: dict[Tier, Version] = {}
        reason = "nothing was saved or restored yet"
        if self._client is not None:
            reason = _why_not_connected(self._client)
            for tier in (Tier.MEMORY, Tier.PEER, Tier.DISK, Tier.REMOTE):
                if (version := self._client.latest(tier)) is not None:
                    newest[tier] = version
        skipped = self.stats().get("skipped", 0)
        return Health(not reason, reason, newest, dict(self._failures.kinds), skipped)

    def stats(self) -> dict[str, int]:
        """See `holdfast.Client.stats`; empty before the first save or restore."""
        return {} if self._client is None else self._client.stats()

    # ------------------------------------------------------------------------------- restoring

    @phases.marked(Phase.CHECKPOINT)
    def restore(self, version: Version | None = None, *, strict: bool = True,
                dry_run: bool = False, timeout: float = 120.0) -> int:
        """Restores the state from a version. All ranks call this together.

        Call it before the first step, or later to roll back, for example after a NaN loss. A
        rollback begins another start of the job: versions newer than the restored one are abandoned,
        and steps continue from the restored one.

        Args:
            version: None: the newest version that every rank can restore.
            strict: if False, restore what the state and the version both have, and leave the rest
                of the state unchanged.
            dry_run: change nothing; print what matches and what differs.
            timeout: seconds, including the wait for an agent that is not running yet.

        Returns:
            The step to continue with: the version's step plus one. 0: the job has no version, which
            means a fresh start.

        Raises:
            StateMismatchError: names all differences between the state and the version; nothing was
                changed.
            UnavailableError, DeadlineExceededError, DataLossError: the version could not be read.
                This is not a fresh start. The tensors may hold a mixture of old and new values until
                a restore succeeds.
            NotFoundError: the job has no committed version `version`.
            UnsupportedValueError: the version contains a pickle, and allow_pickle is False.
        """
        self._check_usable()
        deadline = time.monotonic() + timeout
        if self._saving or version is not None and self._chosen not in (None, version):
            self._begin_again()
        client = self._client_for_reading()
        with _no_garbage_collection():
            reader = client.open_version(version, max(0.0, deadline - time.monotonic()))
            self._agent_answered = True
            if reader is None:
                return 0
            with reader:
                self._fill(reader, strict, dry_run, deadline)
                result = reader.version
        self._chosen = result
        if not dry_run:
            self.restored = result
        return result.step + 1

    def _begin_again(self) -> None:
        """Begins another start of the job, under a run ID that all ranks agree on. A start restores
        one version and continues from it, so a rollback needs another start. Versions that this
        start saved after the restored one are abandoned."""
        name = self._run_id or os.environ.get("HOLDFAST_RUN_ID")
        self.forget()
        self._restarts += 1
        again = agreed_run_id(self.world) or str(self._restarts)
        # The part before "+" stays the supervisor's run ID, so the new start still belongs to its run.
        first = "" if name is None else name[:100].partition("+")[0] + "+"
        self._run_id = first + again[:16]
        self._saving, self._chosen = False, None

    def _client_for_reading(self) -> Client:
        """A client that can open versions. It connects in the background.

        Before the first description this client has no tensors, since the restore itself may create
        the tensors of an optimizer. Such a client needs hardly any memory of the agent.
        """
        if self._client is None:
            self._open([], start_offline=True, connect_timeout=_ABSENT_S)
        assert self._client is not None
        return self._client

    def _apply(self, saved: Saved, comparison: Comparison,
               loaded: dict[str, torch.Tensor]) -> None:
        for part in self._parts:
            if part.name in comparison.values:
                part.restore(comparison.values[part.name], comparison.absent, loaded)
        if self._random_states and self.rank < saved.reader.world and "random" in saved.state:
            random_state.restore(values.decode(saved.state["random"], "random"))

    def _fill(self, reader: VersionReader, strict: bool, dry_run: bool, deadline: float) -> None:
        # In the same world a shard usually has all that its rank held. What all ranks saved takes the
        # longer to read the more ranks there are.
        if reader.world == self.world:
            own = Saved(reader, self.rank, self.world, own_only=True)
            if own.complete and self._fill_from(own, strict, dry_run, deadline, only_if_same=True):
                return
        self._fill_from(Saved(reader, self.rank, self.world), strict, dry_run, deadline)

    def _fill_from(self, saved: Saved, strict: bool, dry_run: bool, deadline: float,
                   only_if_same: bool = False) -> bool:
        """Fills the state. Returns False if `only_if_same` and there are differences; nothing has
        changed then."""
        # Rank-local values are restored on the rank with the same number.
        tensors, state = saved.tensors(), saved.state
        undo: list[Callable[[], None] | None] = []
        try:
            for part in self._parts:
                if part.name in state["parts"]:
                    undo.append(part.prepare(tensors, state["parts"][part.name]))
            snapshot = Snapshot(self._parts, self.rank, self.world)
            comparison = Comparison(saved, snapshot, self._parts, self._decisions)
            if only_if_same and (comparison.differences or comparison.undecided):
                return False
            if dry_run:
                print(comparison.report())
            elif strict and comparison.differences or comparison.undecided:
                raise StateMismatchError(comparison.differences if strict else comparison.undecided)
            else:
                self.guard()
                loaded = fill_from_reader(saved.reader, comparison,
                                          max(0.0, deadline - time.monotonic()))
                self._apply(saved, comparison, loaded)
                undo = []
            return True
        finally:
            for put_back in undo:
                if put_back is not None:
                    put_back()

    def connect(self) -> None:
        """Describes the state now instead of at the first save. This is a collective of all ranks."""
        self._current_snapshot()

    def open_version(self, version: Version | None = None,
                     timeout: float = 120.0) -> VersionReader | None:
        """Opens a version as its ranks saved it; see `holdfast.Client.open_version`. Returns None if
        the job has no version.

        Without `version` all ranks open the same version. In a run that has saved versions all ranks
        must therefore call this, or restore(), together.
        """
        self._current_snapshot()
        assert self._client is not None
        return self._client.open_version(version, timeout)

    def forget(self) -> None:
        """Releases the described tensors. The next save describes the state again.

        Background failures are only logged: call wait() first for versions that must be committed.
        """
        self._snapshot = None
        client, self._client = self._client, None
        if client is not None:
            self._was_connected = not _why_not_connected(client)
            self._close_client(client, 60.0)

    # --------------------------------------------------------------------------------- closing

    def close(self, timeout: float = 30.0) -> None:
        """Blocks until the agent has sealed all saves, so that they outlive this process.

        Background failures are logged and counted; see health().

        Raises:
            DeadlineExceededError: names the steps that were not sealed. The checkpointer is closed
                in any case.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        _open_checkpointers.discard(self)
        for hook in self._hooks:
            hook.remove()
        self._snapshot = None
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close(timeout)
            except DeadlineExceededError:
                raise
            except HoldfastError as error:
                self._failures.add(error)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            _close_quietly(self)


def _undeclared(thing: Any) -> Any:
    return thing.thing if isinstance(thing, Replicated) else thing


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection. The descriptions of several thousand tensors would trigger
    collections, which traverse all objects of the process and take longer than everything else."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _why_not_connected(client: Client) -> str:
    """The reason why the client is not connected. Empty: it is connected."""
    try:
        client.check_connection()
    except HoldfastError as error:
        return error.message
    return ""


def _guard_before_step(me: weakref.ref[Checkpointer]) -> None:
    checkpointer = me()
    if checkpointer is not None:
        checkpointer._guard_quietly()


def _close_quietly(checkpointer: Checkpointer) -> None:
    try:
        checkpointer.close(10.0)
    except HoldfastError as error:
        _logger.warning("closing job %s: %s", checkpointer.job, error)


_open_checkpointers: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for checkpointer in list(_open_checkpointers):
        _close_quietly(checkpointer)
