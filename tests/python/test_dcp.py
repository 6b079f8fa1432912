"""torch.distributed.checkpoint through Holdfast's writer and reader."""

import holdfast
import holdfast.torch as hf
import pytest
import torch
import torch.distributed.checkpoint as dcp
import training
from ranks import run
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def state_dict(seed):
    torch.manual_seed(seed)
    return {"model": {"w": torch.rand(5, 7), "t": torch.rand(4, 6).t(), "s": torch.tensor(seed),
                      "e": torch.zeros(0, 3), "c": torch.rand(3, dtype=torch.complex128),
                      "b": torch.rand(9).to(torch.bfloat16)},
            "step": seed, "names": ["a", ("b", 2.5)], "nested": {"deep": [{"x": None}]}}


def assert_equal(found, expected):
    assert repr(found) == repr(expected)


def test_save_and_load(cluster, job):
    for step in (3, 4):
        dcp.save(state_dict(step), storage_writer=hf.StorageWriter(job, step=step))
    found = state_dict(0)
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert_equal(found, state_dict(4))
    # Loading was one start of the job, the next save begins another.
    dcp.save(state_dict(5), storage_writer=hf.StorageWriter(job, step=5))
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert_equal(found, state_dict(5))


def test_async_save(cluster, job):
    state = state_dict(1)
    future = dcp.async_save(state, storage_writer=hf.StorageWriter(job, step=1))
    with torch.no_grad():
        state["model"]["w"].zero_()  # it was staged
    future.result()
    dcp.load(state, storage_reader=hf.StorageReader(job))
    assert_equal(state, state_dict(1))


def test_partial_loads_and_missing_keys(cluster, job):
    dcp.save(state_dict(2), storage_writer=hf.StorageWriter(job, step=0))
    some = {"model": {"w": torch.zeros(5, 7)}}
    dcp.load(some, storage_reader=hf.StorageReader(job))
    assert torch.equal(some["model"]["w"], state_dict(2)["model"]["w"])
    more = {"model": {"w": torch.zeros(5, 7), "new": torch.ones(2)}}
    with pytest.raises(CheckpointException, match="Missing key in checkpoint.*model.new"):
        dcp.load(more, storage_reader=hf.StorageReader(job))
    dcp.load(more, storage_reader=hf.StorageReader(job),
             planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    assert torch.equal(more["model"]["w"], state_dict(2)["model"]["w"])
    assert (more["model"]["new"] == 1).all()
    with pytest.raises(CheckpointException, match="(?i)size mismatch"):
        dcp.load({"model": {"w": torch.zeros(5, 8)}}, storage_reader=hf.StorageReader(job))
    other = {"model": {"w": torch.zeros(5, 7, dtype=torch.float64)}}
    dcp.load(other, storage_reader=hf.StorageReader(job))
    assert torch.equal(other["model"]["w"], state_dict(2)["model"]["w"].double())


def test_a_job_without_versions(cluster, job):
    with pytest.raises(CheckpointException, match="no version to load"):
        dcp.load(state_dict(0), storage_reader=hf.StorageReader(job))


class Poison:
    def __reduce__(self):
        return (print, ("this ran",))


def test_no_pickle_by_default(cluster, job, capsys):
    with pytest.raises(CheckpointException, match="'p' is a .*Poison"):
        dcp.save({"p": Poison()}, storage_writer=hf.StorageWriter(job, step=0))
    dcp.save({"p": Poison()}, storage_writer=hf.StorageWriter(job, step=1, allow_pickle=True))
    with pytest.raises(CheckpointException, match="'p' was saved by pickling"):
        dcp.load({"p": 0}, storage_reader=hf.StorageReader(job))
    assert "this ran" not in capsys.readouterr().out


def save_sharded(kind, job):
    state = training.build(kind, seed=1)
    training.train(state, 0, kind)
    model, optim = get_state_dict(state["model"], state["optim"])
    dcp.save({"model": model, "optim": optim}, storage_writer=hf.StorageWriter(job, step=0))
    return training.full_tensors(state)


def load_sharded(kind, job):
    state = training.build(kind, seed=2)
    model, optim = get_state_dict(state["model"], state["optim"])
    both = {"model": model, "optim": optim}
    dcp.load(both, storage_reader=hf.StorageReader(job))
    set_state_dict(state["model"], state["optim"], model_state_dict=both["model"],
                   optim_state_dict=both["optim"])
    return training.full_tensors(state)


def test_other_worlds(cluster, job):
    expected = run(4, save_sharded, "tp_fsdp", job)[0]
    for found in run(3, load_sharded, "fsdp", job):
        training.assert_same(found, expected)
    training.assert_same(run(1, load_sharded, "plain", job)[0], expected)


def test_a_version_of_the_checkpointer(cluster, job):
    model = torch.nn.Linear(3, 3)
    with hf.Checkpointer(job, {"model": model}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    found = {"model": {"weight": torch.zeros(3, 3), "bias": torch.zeros(3)}}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert torch.equal(found["model"]["weight"], model.weight)
