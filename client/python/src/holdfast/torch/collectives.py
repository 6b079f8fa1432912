"""Records the collectives of torch.distributed on CPUs for the fault detector, which then names ranks
that hang or come late.

The recorder hooks the operators c10d::* of torch's dispatcher, which all paths share: calls from
Python, DistributedDataParallel's reducer in C++, fully_shard, functional collectives, and process
groups made later. Collectives on GPUs are not recorded: jobs on NCCL use the profiler plugin.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import threading
import time
import weakref
from typing import Any, Callable, Iterable, Mapping, NamedTuple

import torch
import torch.distributed as dist

from .. import _native
from ..errors import HoldfastError
from ..records import Kind, Role

__all__ = ["CollectiveRecorder", "record_collectives"]

_logger = logging.getLogger("holdfast")
#: The last dispatch key before the device kernels. Calls from below autograd pass it, too.
_KEY = "ADInplaceOrView"
_POLL_SECONDS = 0.005
_NO_DTYPE = 255


class _Operator(NamedTuple):
    kind: Kind
    part: str | None  # the argument with this rank's part; None: sizes may differ, none is recorded
    peer: str | None = None  # the argument with the root or the other end


#: All members of a collective must record the same number of bytes, or the detector reports a fault of
#: the program. All-to-all is an exception.
_OPERATORS = {
    "allreduce_": _Operator(Kind.ALL_REDUCE, "tensors"),
    "allreduce_coalesced_": _Operator(Kind.ALL_REDUCE, "tensors"),
    "allgather_": _Operator(Kind.ALL_GATHER, None),
    "_allgather_base_": _Operator(Kind.ALL_GATHER, "input_tensor"),
    "allgather_coalesced_": _Operator(Kind.ALL_GATHER, None),
    "allgather_into_tensor_coalesced_": _Operator(Kind.ALL_GATHER, "inputs"),
    "reduce_scatter_": _Operator(Kind.REDUCE_SCATTER, None),
    "_reduce_scatter_base_": _Operator(Kind.REDUCE_SCATTER, "output_tensor"),
    "reduce_scatter_tensor_coalesced_": _Operator(Kind.REDUCE_SCATTER, "outputs"),
    "broadcast_": _Operator(Kind.BROADCAST, "tensors", "root_rank"),
    "reduce_": _Operator(Kind.REDUCE, "tensors", "root_rank"),
    "gather_": _Operator(Kind.OTHER, None, "root_rank"),
    "scatter_": _Operator(Kind.OTHER, None, "root_rank"),
    "alltoall_": _Operator(Kind.ALL_TO_ALL, "input_tensors"),
    "alltoall_base_": _Operator(Kind.ALL_TO_ALL, "input"),
    "barrier": _Operator(Kind.BARRIER, None),
    "monitored_barrier_": _Operator(Kind.BARRIER, None),
    "send": _Operator(Kind.SEND, "tensors", "dst"),
    "recv_": _Operator(Kind.RECEIVE, "tensors", "src"),
}


class _PolledWorks:
    """Operations for which torch has no completion callback. A thread polls them until they complete.
    The time of completion is unknown, so their duration is not recorded."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._works: list[tuple[Any, int]] = []
        self._thread: threading.Thread | None = None

    def add(self, work: Any, operation: int) -> None:
        with self._condition:
            self._works.append((work, operation))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-works",
                                                daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._works:
                    self._condition.wait()
                works, self._works = self._works, []
            left = []
            for work, operation in works:
                if work.is_completed():
                    _native.collective_abandon(operation)
                else:
                    left.append((work, operation))
            works.clear()
            with self._condition:
                self._works[:0] = left
            time.sleep(_POLL_SECONDS)


class CollectiveRecorder:
    """Records collectives until `stop()`. Can be used with `with`."""

    def __init__(self, roles: Mapping[Any, Role]) -> None:
        self._roles = {group.group_name: role for group, role in roles.items()}
        self._communicators: dict[str, tuple[weakref.ref[Any], int | None]] = {}
        self._polled = _PolledWorks()
        self._without_future: set[str] = set()
        self._library: torch.library.Library | None = torch.library.Library("c10d", "IMPL")
        for name, operator in _OPERATORS.items():
            if hasattr(torch.ops.c10d, name):
                self._library.impl(name, self._hook(name, operator), _KEY)

    def stop(self) -> None:
        """Stops recording. Collectives then run as without a recorder."""
        library, self._library = self._library, None
        if library is not None:
            library._destroy()

    def __enter__(self) -> CollectiveRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _hook(self, name: str, operator: _Operator) -> Callable[..., Any]:
        overload = getattr(torch.ops.c10d, name).default
        places = {argument.name: i for i, argument in enumerate(overload._schema.arguments)}
        group_at = places["process_group"]
        part_at = None if operator.part is None else places[operator.part]
        peer_at = None if operator.peer is None else places[operator.peer]
        async_at = places.get("async_op", len(places))
        below = torch._C._AutoDispatchBelowADInplaceOrView

        def run(*arguments: Any) -> Any:
            operation = 0
            if not _on_cpu(arguments):
                with below():
                    return overload(*arguments)
            try:
                communicator = self._communicator(dist.ProcessGroup.unbox(arguments[group_at]))
                if communicator is not None:
                    operation = _native.collective_begin(
                        communicator, operator.kind,
                        0 if part_at is None else _bytes(arguments[part_at]), _NO_DTYPE,
                        None if peer_at is None else arguments[peer_at], None)
            except Exception:
                _logger.debug("a collective was not recorded", exc_info=True)
            # The call through the operator releases the GIL. Gloo's threads wait for the GIL while they
            # hold locks that this call needs.
            try:
                with below():
                    result = overload(*arguments)
                # Trailing arguments with their default value are not passed.
                if len(arguments) > async_at and not arguments[async_at]:
                    _work_of(result).wait()  # as the caller would, at once
                    _native.collective_end(operation)
                    return result
            except BaseException:
                _native.collective_abandon(operation)
                raise
            if operation != 0:
                self._end_with(result, name, operation)
            return result
        return run

    def _end_with(self, result: Any, name: str, operation: int) -> None:
        """Ends the record when the operation completes, independent of who waits for it."""
        try:
            if result is None:  # the call has waited for it
                _native.collective_end(operation)
                return
            work = _work_of(result)
            if name not in self._without_future:
                try:
                    future = work.get_future()
                    future.add_done_callback(lambda _: _native.collective_end(operation))
                    return
                except RuntimeError:
                    self._without_future.add(name)
            self._polled.add(work, operation)
        except Exception:
            _native.collective_abandon(operation)
            _logger.debug("the end of a collective is not recorded", exc_info=True)

    def _communicator(self, group: Any) -> int | None:
        """The number of the group's communicator, described at its first use. None: there is no room."""
        name = group.group_name
        known = self._communicators.get(name)
        if known is not None and known[0]() is group:
            return known[1]
        members = dist.get_process_group_ranks(group)
        role = self._roles.get(name, Role.UNKNOWN)
        number: int | None = 0
        if members != list(range(dist.get_world_size())) or role != Role.UNKNOWN \
                or group is not dist.group.WORLD:
            text = f"{name} {members}".encode()
            number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1
            try:
                _native.communicator_describe(number, len(members), group.rank(), members, role)
            except HoldfastError as error:
                _logger.warning("collectives of process group %s are not recorded: %s", name, error)
                number = None
        weakref.finalize(group, _forget, number)
        self._communicators[name] = (weakref.ref(group), number)
        return number


def _forget(number: int | None) -> None:
    if number:
        _native.communicator_forget(number)


def _on_cpu(arguments: Any) -> bool:
    tensor = _first_tensor(arguments)
    return tensor is not None and tensor.device.type == "cpu"


def _first_tensor(tree: Any) -> torch.Tensor | None:
    if isinstance(tree, torch.Tensor):
        return tree
    if isinstance(tree, (list, tuple)):
        for branch in tree:
            if (found := _first_tensor(branch)) is not None:
                return found
    return None


def _work_of(result: Any) -> Any:
    return dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)


def _bytes(part: torch.Tensor | Iterable[torch.Tensor]) -> int:
    if isinstance(part, torch.Tensor):
        return part.nbytes
    return sum(tensor.nbytes for tensor in part)


_recorder: CollectiveRecorder | None = None


def record_collectives(roles: Mapping[Any, Role] | None = None) -> CollectiveRecorder:
    """Records all further collectives on CPUs (gloo) for the fault detector. Call it on all ranks
    after `init_process_group`. Jobs on NCCL set NCCL_PROFILER_PLUGIN=holdfast instead.

        dist.init_process_group("gloo")
        hf.record_collectives()

    An operation takes 40 to 100 µs longer. The recorder raises no errors into training.

    Not recorded are collectives on GPUs or of other libraries, and receives from any source. For
    sends, receives and asynchronous reduce-scatters only completion is recorded, not the duration.

    Args:
        roles: process group → its role, if the detector is to compare ranks with the same role.

    Returns:
        The recorder, whose stop() ends the recording. A second call replaces the first recorder.
    """
    global _recorder
    if _recorder is not None:
        _recorder.stop()
    _recorder = CollectiveRecorder(roles or {})
    return _recorder


@atexit.register
def _stop() -> None:
    if _recorder is not None:
        _recorder.stop()
