"""Recording the collectives of real gloo ranks for the fault detector."""

import json
import os
import pathlib
import signal
import sys
import threading

import holdfast.torch as hf
import pytest
import torch
import torch.distributed as dist
from cluster import wait_until
from holdfast import _native
from holdfast.records import Kind
from ranks import run

TRAINER = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
import holdfast.torch as hf

torch.set_num_threads(1)
dist.init_process_group("gloo")
hf.record_collectives()
rank = dist.get_rank()
pathlib.Path(sys.argv[1], f"pid-{rank}").write_text(str(os.getpid()))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ckpt = hf.Checkpointer("hangs", {"model": model})
for step in range(ckpt.restore(), 10**9):
    model(torch.ones(2, 4)).sum().backward()  # DDP's own all-reduce, called from C++
    ckpt.guard()
    ckpt.save(step)
    time.sleep(0.02)
"""


def test_a_rank_that_hangs_is_named(cluster, tmp_path):
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER)
    done = cluster.cli("run", "--job", "hangs", "--detach", "--nnodes", "1",
                       "--nproc-per-node", "3", "--", sys.executable, str(program), str(tmp_path))
    assert done.returncode == 0, done.stderr
    try:
        def newest():
            done = cluster.cli("status", "hangs", "-o", "json")
            return json.loads(done.stdout)["jobs"][0]["newest_seen_step"] if done.stdout else 0
        wait_until(lambda: newest() >= 20, seconds=60, what="training")
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGSTOP)

        def hang():
            answer = json.loads(cluster.cli("incidents", "--job", "hangs", "-o", "json").stdout)
            return [one for one in answer["incidents"] if "hang" in one["kind"]]
        wait_until(hang, seconds=60, what="the incident")
        assert hang()[0]["kind"] == "non-communication hang", hang()
        assert hang()[0]["ranks"] == [1], hang()
        assert "have been in AllReduce" in json.dumps(hang()[0]["evidence"]), hang()
    finally:
        cluster.cli("stop", "hangs", "--now")
        # Workers outlive their agent, which ends with the module.
        pids = [path.read_text() for path in tmp_path.glob("pid-*")]
        wait_until(lambda: not any(pathlib.Path("/proc", pid).exists() for pid in pids), what="the end of the workers")


def recorded():
    """Returns the records of one operation of each kind, on two ranks."""
    records, lock, counter = [], threading.Lock(), iter(range(1, 10**6))
    real = {name: getattr(_native, name) for name in (
        "collective_begin", "collective_end", "collective_abandon", "communicator_describe")}

    def begin(communicator, kind, bytes, dtype, peer, sequence):
        with lock:
            number = next(counter)
            records.append(["begin", number, communicator, int(kind), bytes, peer])
        return number
    _native.collective_begin = begin
    _native.collective_end = lambda number: records.append(["end", number])
    _native.collective_abandon = lambda number: records.append(["abandon", number])
    _native.communicator_describe = lambda *arguments: records.append(["group", *arguments])
    try:
        with hf.record_collectives() as recorder:
            run_all_kinds(records)
            wait_until(lambda: all_ended(records), what="the end of all operations")
        before = len(records)
        dist.all_reduce(torch.ones(3))
        assert len(records) == before, "recorded after stop()"
        assert recorder is not None
    finally:
        for name, function in real.items():
            setattr(_native, name, function)
    return records


def run_all_kinds(records):
    rank, ones = dist.get_rank(), torch.ones(1000)
    dist.all_reduce(ones)
    dist.all_reduce(ones, async_op=True).wait()
    dist.all_gather_into_tensor(torch.empty(2000), ones)
    dist.all_gather([torch.empty(1000), torch.empty(1000)], ones)
    dist.reduce_scatter_tensor(torch.empty(500), ones)
    dist.broadcast(ones, 1)
    dist.all_to_all_single(torch.empty(1000), ones)
    dist.barrier()
    dist.gather(ones, [torch.empty(1000), torch.empty(1000)] if rank == 0 else None)
    if rank == 0:
        dist.send(ones, 1)
        dist.irecv(ones, 1).wait()
    else:
        dist.recv(ones, 0)
        dist.isend(ones, 0).wait()
    import torch.distributed._functional_collectives as functional
    functional.all_reduce(ones, "sum", dist.group.WORLD) + 1
    dist.all_reduce(ones, group=dist.new_group([0, 1]))
    from torch.distributed.fsdp import fully_shard
    model = fully_shard(torch.nn.Linear(100, 100), mesh=dist.init_device_mesh("cpu", (2,)))
    records.append(["fsdp"])
    model(torch.ones(2, 100)).sum().backward()


def all_ended(records):
    ended = {entry[1] for entry in records if entry[0] in ("end", "abandon")}
    return ended == {entry[1] for entry in records if entry[0] == "begin"}


def test_the_recorded_operations():
    for rank, records in enumerate(run(2, recorded)):
        at = records.index(["fsdp"])
        begun = [tuple(entry[2:]) for entry in records[:at] if entry[0] == "begin"]
        world = [entry[1:] for entry in begun if entry[0] == 0]
        assert world[:9] == [
            (Kind.ALL_REDUCE, 4000, None), (Kind.ALL_REDUCE, 4000, None),
            (Kind.ALL_GATHER, 4000, None), (Kind.ALL_GATHER, 0, None),
            (Kind.REDUCE_SCATTER, 2000, None), (Kind.BROADCAST, 4000, 1),
            (Kind.ALL_TO_ALL, 4000, None), (Kind.BARRIER, 0, None),
            (Kind.OTHER, 0, 0)], world
        pair = [(Kind.SEND, 4000, 1 - rank), (Kind.RECEIVE, 4000, 1 - rank)]
        assert world[9:11] == (pair if rank == 0 else pair[::-1])
        assert world[11] == (Kind.ALL_REDUCE, 4000, None)
        group, *_ = [entry for entry in records[:at] if entry[0] == "group"]
        assert group[2:] == [2, rank, [0, 1], 0]
        assert (group[1], Kind.ALL_REDUCE, 4000, None) in begun
        sharded = [entry[3] for entry in records[at:] if entry[0] == "begin"]
        assert Kind.ALL_GATHER in sharded and Kind.REDUCE_SCATTER in sharded
        ended = {entry[1]: entry[0] for entry in records if entry[0] in ("end", "abandon")}
        assert all(ended[number] == "end" for number in range(1, 10))  # their duration is known


def run_with_a_broken_recorder():
    """Runs collectives with a recorder that raises."""
    def broken(*_):
        raise RuntimeError("broken")
    _native.collective_begin = broken
    hf.record_collectives()
    ones = torch.ones(2)
    dist.all_reduce(ones)
    with pytest.raises(RuntimeError):  # as without a recorder
        dist.broadcast(ones, 7)
    return ones.tolist()


def test_nothing_is_raised_into_training():
    assert run(2, run_with_a_broken_recorder) == [[2.0, 2.0]] * 2
