"""Checkpointer: a training loop's whole state, saved while it goes on."""

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
from ..client import Client, Phase, Tier, Version, View
from ..errors import (AlreadyExistsError, DeadlineExceededError, FailedPreconditionError,
                      FencedError, HoldfastError, InvalidArgumentError, PermissionDeniedError,
                      UnavailableError, UnsupportedError)
from . import phases, random_state, values
from .arguments import unwrapped
from .health import FailureLog, Health
from .identity import Replicated, of_rank
from .parts import OptimizerPart, parts_of
from .plan import Plan, agree, agreed_run_id
from .reshape import Decisions
from .restoring import Comparison, fill_from_view
from .samples import EXTRA as _SAMPLES, EXTRA_BYTES_MAX, ReplicaSamples, Rotation
from .saved import LAYOUT as _LAYOUT, STATE as _STATE, Saved, StateMismatchError
from .snapshot import Snapshot

__all__ = ["Checkpointer"]

_logger = logging.getLogger("holdfast")
_FORMAT = 2
_EXTRA_BYTES_MIN = 1 << 20
_RETRY_PAUSE_MAX = 30.0
_ABSENT_S = 0.001
#: What save() raises: the caller must change something. All else costs a version at most.
_RAISED = (AlreadyExistsError, FailedPreconditionError, FencedError, InvalidArgumentError,
           PermissionDeniedError, UnsupportedError)
#: What a rank saves for itself is worth a warning from so many bytes on.
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

    What is saved: parameters, buffers, optimizer state, generators of random numbers, and what has
    state_dict() and load_state_dict(). Plain modules, DistributedDataParallel, fully_shard and
    tensor parallel modules are understood. A known replica is saved once, cut into a part for each
    of the ranks that hold it: a DTensor says what it replicates, DistributedDataParallel keeps its
    module equal, and what else is equal you declare with `holdfast.torch.replicated`. All other
    tensors each rank saves for itself and gets back itself. Nothing is pickled.

    When may tensors change? Not between save() and the guard, which waits for the copy. Each
    optimizer of the state calls it by itself before its step. Call `guard()` before you change
    parameters in another way; buffers are copied within save() and may change at any time.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same on all ranks, and at each start. None: $HOLDFAST_JOB,
            which `holdfast run` sets to the name that it was given.
        state: name → module, optimizer, tensor, dictionary of tensors and values, or anything with
            state_dict() and load_state_dict().
        rank, world, run_id: None: from torch.distributed where it is initialised, else from the
            environment of torchrun and `holdfast run`.
        guard_steps: False: you call `guard()` yourself before each optimizer step.
        random_states: save Python's, NumPy's and torch's generators, too.
        allow_pickle: values that have no JSON form are pickled, and pickles in checkpoints loaded.
            A pickle can run any code: only for checkpoints whose writers you trust.
        on_reshape: entry of the state, or the beginning of a tensor's name up to a dot → what
            becomes of tensors that each rank saved for itself when there is another number of
            ranks: "first" (the lowest rank's), "mean", "zero", "drop" (the state's stay as they
            are). Without it such a restore raises StateMismatchError, which names them.
        trainable_only: leave out parameters of modules that need no gradient.
        client_options: further arguments of `holdfast.Client`, such as socket_path and slots.

    Raises:
        TypeError: an entry of the state of which nothing is known.
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
        #: The version that restore() brought back; None after a fresh start.
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
        #: There was an agent once: from then on its absence costs saves, and nothing else.
        self._known = False
        #: The agent was there when the last connection was given up.
        self._there = True
        #: The agent has had room for the state once.
        self._described = False
        self._retry_at, self._retry_pause = 0.0, 1.0
        #: save() was called in this start of the job; restore() has chosen this version in it.
        self._saving = False
        self._again = 0
        self._graphs_heeded = False
        self._chosen: Version | None = None
        self._pid = os.getpid()
        self._closed = False
        self._hooks = []
        if guard_steps:
            me = weakref.ref(self)
            self._hooks = [thing.register_step_pre_hook(lambda *_: _guard_before_step(me))
                           for thing in map(_undeclared, state.values())
                           if isinstance(thing, torch.optim.Optimizer)]
        _open_ones.add(self)

    # ------------------------------------------------------------------------------ describing

    def _connect(self, snapshot: Snapshot) -> None:
        """Describes the state to the agent: at first, and when its memory or its size is
        another."""
        self._snapshot = None
        client, self._client = self._client, None
        if client is not None:
            self._there = not _why_not_connected(client)
            # The accepted saves are sealed first: then no copy reads the old memory.
            self._leave(client, 60.0)
        if self._plan is None:
            self._plan = agree(snapshot, self.rank, self.world)
            self._tell_what_is_kept_apart(snapshot)
        self._layout = values.dumps({
            "format": _FORMAT, "world": self.world,
            "aliases": snapshot.saved_aliases(self._plan),
            "types": snapshot.real_dtypes(self._plan),
            "own": [name for name, stored in snapshot.stored.items()
                    if self._plan.disagreed(stored)],
            "held": snapshot.held_without_rows(self._plan),
            "parts": {part.name: part.layout() for part in self._parts}})
        self._extra_bytes = max(self._extra_bytes, 2 * len(self._layout) + _EXTRA_BYTES_MIN)
        options: dict[str, Any] = {}
        if self._known:
            # An agent that went away is neither an error nor waited for.
            options["start_offline"] = True
            if not self._there:
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
        self._known |= not _why_not_connected(self._client)

    def _name_start(self) -> str | None:
        """The name of this start of the job, as far as it can be known; a collective at first."""
        if self._run_id is None and not os.environ.get("HOLDFAST_RUN_ID"):
            self._run_id = agreed_run_id(self.world)
        return self._run_id

    def _leave(self, client: Client, timeout: float) -> None:
        """Closes; what failed in the background is counted, what was not sealed is logged."""
        try:
            client.close(timeout)
        except HoldfastError as error:
            self._failures.add(error)

    def _tell_what_is_kept_apart(self, snapshot: Snapshot) -> None:
        assert self._plan is not None
        disagreed = [name for name, stored in snapshot.stored.items()
                     if self._plan.disagreed(stored)]
        if disagreed:
            _logger.warning("job %s: not all ranks have %s in the same form (%d tensors), though "
                            "they should: each rank saves its own", self.job, disagreed[0],
                            len(disagreed))
        by_entry: dict[str, int] = {}
        for name, stored in snapshot.stored.items():
            if self._plan.qualifier(stored) == of_rank(self.rank):
                entry = name.partition(".")[0]
                by_entry[entry] = by_entry.get(entry, 0) + stored.box.bytes
        total = sum(by_entry.values())
        if total > 0 and self.world > 1:
            _logger.log(logging.WARNING if total >= _NOTED_BYTES else logging.INFO,
                        "job %s: rank %d saves %d bytes for itself (%s); what is equal on all "
                        "ranks is saved once if you declare it: state={'%s': hf.replicated(…)}",
                        self.job,
                        self.rank, total,
                        ", ".join(f"{entry}: {size}" for entry, size in by_entry.items()),
                        max(by_entry, key=by_entry.__getitem__))

    def _look(self) -> Snapshot:
        """The description of the state as it is now, connected."""
        self._check_usable()
        if self._snapshot is None or not self._snapshot.still_holds():
            self._connect(Snapshot(self._parts, self.rank, self.world))
        assert self._snapshot is not None
        return self._snapshot

    def _stream(self, snapshot: Snapshot) -> int:
        return torch.cuda.current_stream().cuda_stream if snapshot.on_device else 0

    def _check_usable(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the checkpointer is closed")
        if self._pid != os.getpid():
            raise FailedPreconditionError("this process was forked from the one that has the "
                                          "checkpointer: make one of its own here")

    # ---------------------------------------------------------------------------------- saving

    @phases.marked(Phase.CHECKPOINT)
    def save(self, step: int, *, wait_for_slot: float = 0.0) -> bool:
        """Saves the state as version `step`; returns at once. Steps must grow.

        The first call, and the first after tensors were replaced, describes the state, which takes
        longer; the very first is a collective of all ranks.

        Args:
            wait_for_slot: seconds that this save may wait, in the background, until memory for one
                more version is free. 0: such a step is skipped. For one that matters.

        Returns:
            False when this step is not saved, since the agent is away or overloaded: training goes
            on, and so does the client, which reconnects by itself. What fails later, in the
            background (a full disk, say), is logged and counted: see health().

        Raises:
            FencedError: a newer start of the job is running; AlreadyExistsError: `step` has not
                grown. UnavailableError: there has never been an agent.
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
                self._heed_graphs()
            extras = {_LAYOUT: self._layout, _STATE: self._capture()}
            size = sum(map(len, extras.values()))
            if size + EXTRA_BYTES_MAX > self._extra_bytes:
                self._extra_bytes = 2 * (size + EXTRA_BYTES_MAX)
                self._connect(snapshot)
            return self._hand_over(step, snapshot, extras, wait_for_slot)
        except _RAISED:
            raise
        except HoldfastError as error:
            # At first somebody must know that there is no agent, or that it has too little memory.
            if not (self._described or self._known and isinstance(error, UnavailableError)):
                raise
            self._failures.add(error, step)
            return False

    def _heed_graphs(self) -> None:
        """The replay of a CUDA graph runs no hook of an optimizer."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise FailedPreconditionError("save() while a CUDA graph is captured: nothing runs now, "
                                          "so nothing can be saved. Save before or after it")
        if not self._graphs_heeded:
            self._graphs_heeded = True
            names = [part.name for part in self._parts if isinstance(part, OptimizerPart) and any(
                group.get("capturable") for group in part.optimizer.param_groups)]
            if names:
                _logger.warning("job %s: '%s' is capturable. Where its step is part of a CUDA graph, "
                                "call ckpt.guard() before each graph.replay(): a replay under a "
                                "copy that runs spoils the version", self.job, "', '".join(names))

    def _ready(self) -> Snapshot | None:
        """The description, connected or trying to be; None: the agent has refused it lately, for
        want of memory, say."""
        if self._described and self._snapshot is None and time.monotonic() < self._retry_at:
            return None
        try:
            snapshot = self._look()
        except HoldfastError:
            self._retry_at = time.monotonic() + self._retry_pause
            self._retry_pause = min(2 * self._retry_pause, _RETRY_PAUSE_MAX)
            raise
        self._retry_pause = 1.0
        return snapshot

    def _capture(self) -> bytes:
        """JSON of all that is not a tensor."""
        # Joined once: it can be some hundred kilobytes.
        pieces, gap = [b'{"parts":{'], b""
        for part in self._parts:
            pieces += gap, values.dumps(part.name), b":", part.capture_json()
            gap = b","
        pieces.append(b"}")
        if self._random_states:
            pieces += b',"random":', random_state.capture_json()
        pieces.append(b"}")
        return b"".join(pieces)

    def _hand_over(self, step: int, snapshot: Snapshot, extras: dict[str, bytes],
                   wait_for_slot: float) -> bool:
        assert self._client is not None
        stream = self._stream(snapshot)
        if wait_for_slot > 0:
            self._await_room(wait_for_slot)
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
            self._failures.add(error)  # an earlier save's; this one is accepted
        return True

    def _await_room(self, seconds: float) -> None:
        """Until one of the earlier saves is copied, where as many wait for it as may."""
        assert self._client is not None
        deadline = time.monotonic() + seconds
        slots = self._options.get("slots", 3)
        while self._client.stats()["pending"] >= slots and time.monotonic() < deadline:
            time.sleep(0.001)

    def guard(self) -> None:
        """Call before you change tensors of the state other than by an optimizer of the state:
        returns when the last save's copy reads them no more.

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
            self._failures.add(error)  # the optimizer's step must not fail for it

    def wait(self, step: int, tier: Tier = Tier.MEMORY, timeout: float = 60.0) -> None:
        """Waits until `step` or a later one is committed at `tier`; see `holdfast.Client.wait`."""
        self._check_usable()
        if self._client is None:
            raise FailedPreconditionError("nothing was saved yet")
        self._client.wait(step, tier, timeout)

    def latest(self, tier: Tier = Tier.MEMORY) -> Version | None:
        """The newest version known to be committed at `tier`."""
        return None if self._client is None else self._client.latest(tier)

    def health(self) -> Health:
        """Whether the agent is there, how far the saves came, and what failed in the background.
        Never blocks."""
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
        """Brings the state back; all ranks call this together, before the first step or to go back
        to an earlier one, after a loss that is not a number, say. Going back begins another start
        of the job: versions that come after the one restored are abandoned, steps are counted on
        from it.

        Args:
            version: None: the newest that every rank can get back.
            strict: False: what only one of state and version has stays as it is.
            dry_run: change nothing, print what matches and what differs.
            timeout: seconds; also for an agent that is still missing.

        Returns:
            The step to go on with: one after the version's. 0: the job has no version, a fresh
            start.

        Raises:
            StateMismatchError: names everything that the state and the version do not both have, or
                have in another form; nothing was changed.
            UnavailableError, DeadlineExceededError, DataLossError: it could not be read. This is
            not a
                fresh start; the tensors may hold a mixture until a restore succeeds.
            UnsupportedValueError: the version has a pickle, and allow_pickle is False.
        """
        self._check_usable()
        deadline = time.monotonic() + timeout
        if self._saving or version is not None and self._chosen not in (None, version):
            self._begin_again()
        client = self._reader()
        with _no_garbage_collection():
            view = client.view(version, max(0.0, deadline - time.monotonic()))
            self._known = True
            if view is None:
                return 0
            with view:
                self._fill(view, strict, dry_run, deadline)
                result = view.version
        self._chosen = result
        if not dry_run:
            self.restored = result
        return result.step + 1

    def _begin_again(self) -> None:
        """A start of a job restores one version and goes on from there: to go back is another
        start, whose name all ranks agree on. Later versions of this one are abandoned."""
        name = self._run_id or os.environ.get("HOLDFAST_RUN_ID")
        self.forget()
        self._again += 1
        again = agreed_run_id(self.world) or str(self._again)
        # Whoever supervises the start by its name knows what belongs to it by what comes first.
        first = "" if name is None else name[:100].partition("+")[0] + "+"
        self._run_id = first + again[:16]
        self._saving, self._chosen = False, None

    def _reader(self) -> Client:
        """A client to read with, which waits for the agent when it is asked. Where nothing was
        described yet it has no tensors and so no memory to speak of: those of an optimizer may
        come into being by the restore only."""
        if self._client is None:
            self._open([], start_offline=True, connect_timeout=_ABSENT_S)
        assert self._client is not None
        return self._client

    def _apply(self, saved: Saved, comparison: Comparison,
               loaded: dict[str, torch.Tensor]) -> None:
        for part in self._parts:
            if part.name in comparison.values:
                part.bring_back(comparison.values[part.name], comparison.absent, loaded)
        if self._random_states and self.rank < saved.view.world and "random" in saved.state:
            random_state.bring_back(values.decode(saved.state["random"], "random"))

    def _fill(self, view: View, strict: bool, dry_run: bool, deadline: float) -> None:
        # Values that ranks have of their own go on where the rank does.
        saved = Saved(view, self.rank, self.world)
        tensors, state = saved.tensors(), saved.state
        undo: list[Callable[[], None] | None] = []
        try:
            for part in self._parts:
                if part.name in state["parts"]:
                    undo.append(part.prepare(tensors, state["parts"][part.name]))
            snapshot = Snapshot(self._parts, self.rank, self.world)
            comparison = Comparison(saved, snapshot, self._parts, self._decisions)
            if dry_run:
                print(comparison.report())
            elif strict and comparison.differences or comparison.undecided:
                raise StateMismatchError(comparison.differences if strict else comparison.undecided)
            else:
                self.guard()
                loaded = fill_from_view(view, comparison, max(0.0, deadline - time.monotonic()))
                self._apply(saved, comparison, loaded)
                undo = []
        finally:
            for put_back in undo:
                if put_back is not None:
                    put_back()

    def connect(self) -> None:
        """Describes the state now, instead of at the first save: a collective of all ranks."""
        self._look()

    def open_view(self, version: Version | None = None, timeout: float = 120.0) -> View | None:
        """A version as it was saved; see `holdfast.Client.view`. None: the job has none.

        Without `version` the ranks agree on one: in a run that has saved versions all of them call
        this, or restore(), together.
        """
        self._look()
        assert self._client is not None
        return self._client.view(version, timeout)

    def forget(self) -> None:
        """Lets go of the tensors that were described; the next save describes what will be there.
        What failed in the background is logged: wait() for what matters before."""
        self._snapshot = None
        client, self._client = self._client, None
        if client is not None:
            self._there = not _why_not_connected(client)
            self._leave(client, 60.0)

    # --------------------------------------------------------------------------------- closing

    def close(self, timeout: float = 30.0) -> None:
        """Waits until what was saved is sealed by the agent, so that it outlives this process.

        What failed in the background before is logged and counted; see health().

        Raises:
            DeadlineExceededError: names the steps that were not sealed; it is closed all the same.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        _open_ones.discard(self)
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
    """The descriptions of some thousand tensors would set off collections, which look at all
    objects of the process: longer than the rest takes."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _why_not_connected(client: Client) -> str:
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


_open_ones: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for checkpointer in list(_open_ones):
        _close_quietly(checkpointer)
