"""Holdfast with the real packages of transformers, Lightning, torchdata and DeepSpeed."""

import json
import os
import subprocess
import sys
from collections import OrderedDict
from functools import partial

import pytest

if os.environ.get("HOLDFAST_FRAMEWORKS") != "1":
    pytest.skip("HOLDFAST_FRAMEWORKS=1 installs the packages and tests with them",
                allow_module_level=True)

import frameworks
import holdfast.torch as hf
import ranks
import torch
from ranks import KILLED

run = partial(ranks.run, timeout=200)  # the imports take long


def test_frameworks_are_imported_on_first_use_only():
    subprocess.run([sys.executable, "-c", "import sys, holdfast.torch as hf\n"
                    "for name in ('transformers', 'lightning', 'deepspeed'):\n"
                    "    assert name not in sys.modules\n"
                    "assert hf.TrainerCallback and 'lightning' not in sys.modules\n"
                    "assert not hasattr(hf, 'Nonsense')"], check=True)


def assert_same(found, expected):
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("world, every", [(1, 1), (2, 2)])
def test_a_killed_and_resumed_trainer_equals_an_uninterrupted_one(cluster, job, tmp_path, world, every):
    steps = 18 // world
    reference = run(world, frameworks.train_hf, job + "-reference", str(tmp_path), 0)
    for kill_after in (4, steps // 3 * 2):  # within an epoch, and at the end of one
        run(world, frameworks.train_hf, job, str(tmp_path), kill_after, every, expect=KILLED)
    found = run(world, frameworks.train_hf, job, str(tmp_path), 0, every)
    for (began, ended, state, _), (_, _, expected, _) in zip(found, reference):
        assert (began, ended) == (steps // 3 * 2, steps)
        assert_same(state, expected)


def test_the_trainer_reports_phases_between_steps():
    from holdfast.torch import phases
    from test_phases import Listener
    from transformers import TrainerControl, TrainerState
    listener = Listener()
    phases.follow(listener)
    callback, state, control = hf.TrainerCallback(job="phases"), TrainerState(), TrainerControl()

    def now():
        return [phase for phase, times in listener.open.items() if times]
    callback.on_epoch_begin(None, state, control)
    assert now() == [hf.Phase.INIT]
    callback.on_step_begin(None, state, control)
    assert now() == []
    control.should_evaluate = True
    callback.on_step_end(None, state, control)
    assert now() == [hf.Phase.EVALUATION]
    callback.on_step_begin(None, state, control)
    assert now() == []
    control.should_evaluate, control.should_save = False, True
    callback.on_epoch_end(None, state, control)
    assert now() == [hf.Phase.CHECKPOINT]
    callback._close()
    assert listener.quiet()


def test_lightning_reports_evaluation():
    from holdfast.torch import phases
    from test_phases import Listener
    listener = Listener()
    phases.follow(listener)
    callback = hf.PhaseCallback()
    for kind in ("validation", "test", "predict"):
        getattr(callback, f"on_{kind}_start")(None, None)
        assert listener.open[hf.Phase.EVALUATION] == 1
        getattr(callback, f"on_{kind}_end")(None, None)
        assert listener.quiet()


def test_a_trainer_that_does_not_resume_raises(cluster, job, tmp_path):
    with hf.Checkpointer(job, {"model": frameworks.Model()}) as ckpt:
        ckpt.save(5)
        ckpt.wait(5)
    [message] = run(1, frameworks.train_hf_without_resume, job, str(tmp_path))
    assert "has been saved up to step 5" in message and "callback.resume(trainer)" in message


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_and_resumed_lightning_training_equals_an_uninterrupted_one(cluster, job, tmp_path, world):
    def train(name, *arguments, **options):
        return run(world, frameworks.train_lightning, name, str(tmp_path / name), *arguments,
                   **options)
    reference = train(job + "-reference", None, 0)
    train(job, None, 2, expect=KILLED)
    # The same global step is saved a second time.
    steps = 4 // world
    assert json.loads((tmp_path / job / "last.ckpt").read_text())["step"] == steps + 1
    train(job, "last", 3, expect=KILLED)
    for (began, state), (_, expected) in zip(train(job, "newest", 0), reference):
        assert began == 2 * steps
        del state["random"], expected["random"]
        assert_same(state, expected)


@pytest.mark.parametrize("world, when", [(1, "epoch"), (2, "epoch"), (1, "step")])
def test_a_resumed_lightning_training_with_dropout_equals_an_uninterrupted_one(
        cluster, job, tmp_path, world, when):
    def train(name, *arguments, **options):
        return run(world, frameworks.train_lightning, name, str(tmp_path / name), *arguments, 4, when,
                   **options)
    reference = train(job + "-reference", None, 0)
    train(job, None, 2, expect=KILLED)
    for (began, state), (_, expected) in zip(train(job, "last", 0), reference):
        assert began == (6 if when == "step" else 4)
        assert_same(state, expected)  # with the state of the generator


def lightning_tree():
    """A checkpoint as Lightning passes it: nested tensors, numbers and text."""
    large = torch.rand(200, 200)
    return {"epoch": 1, "global_step": 7, "state_dict": OrderedDict(a=large, b=large, c=large.t()),
            "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}}],
            "callbacks": {"M{'x': 1}": {"best": torch.tensor(0.5), "paths": {"k": ("a", None)}}}}


def test_checkpoint_io(cluster, job, tmp_path):
    path, other = tmp_path / "a/x.ckpt", tmp_path / "foreign.ckpt"
    io = hf.CheckpointIO(job=job)
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)
    with pytest.raises(FileNotFoundError, match="no version yet"):
        io.load_checkpoint(io.NEWEST)
    trees = [lightning_tree(), lightning_tree()]
    io.save_checkpoint(trees[0], path)
    io.save_checkpoint(trees[1], tmp_path / "again.ckpt")  # the same global step
    assert json.loads((tmp_path / "again.ckpt").read_text())["step"] == 8
    assert_same(io.load_checkpoint(io.NEWEST, map_location="cpu"), trees[1])
    assert_same(io.load_checkpoint(path), trees[0])
    # After the load of an older checkpoint, newer ones are abandoned.
    with pytest.raises(hf.HoldfastError, match="abandoned"):
        io.load_checkpoint(tmp_path / "again.ckpt")
    with pytest.raises(TypeError, match="'trees.checkpoint.hyper' is a .*can only be saved by"):
        io.save_checkpoint({"hyper": object()}, tmp_path / "object.ckpt")
    assert not (tmp_path / "object.ckpt").exists()
    torch.save({}, other)
    with pytest.raises(hf.HoldfastError, match="is not a Holdfast checkpoint"):
        io.load_checkpoint(other)
    io.remove_checkpoint(other)
    io.remove_checkpoint(path)
    io.remove_checkpoint(path)
    assert other.exists() and not path.exists()
    io.teardown()


def test_the_job_of_holdfast_run_is_refused(monkeypatch):
    monkeypatch.setenv("HOLDFAST_JOB", "j")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="another name, such as j.lightning"):
        hf.CheckpointIO(job="j")


def test_a_loader_with_workers_continues_with_the_same_batch(cluster, job):
    [(_, batches, expected)] = run(1, frameworks.train_with_loader, job + "-reference", 0)
    run(1, frameworks.train_with_loader, job, 3, expect=KILLED)
    [(began, found, state)] = run(1, frameworks.train_with_loader, job, 0)
    assert began == 3
    assert_same(found, batches[3:])
    assert_same(state, expected)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_killed_and_resumed_deepspeed_training_equals_an_uninterrupted_one(cluster, job, tmp_path, stage):
    def train(name, *arguments, **options):
        return run(2, frameworks.train_deepspeed, name, str(tmp_path / name), stage, *arguments,
                   **options)
    reference = train(job + "-reference", 0)
    train(job, 3, expect=KILLED)
    assert (tmp_path / job / "latest").read_text() == "global_step3"
    files = list((tmp_path / job / "global_step3").glob("*.pt"))
    assert len(files) == {0: 1, 3: 4}.get(stage, 3)
    assert all(json.loads(path.read_text())["step"] == 3 for path in files)
    for (began, state, parts), (_, expected, expected_parts) in zip(train(job, 0), reference):
        assert began == 3
        assert_same(state, expected)
        assert_same(parts, expected_parts)
    # The file for other programs is a regular file.
    weights = torch.load(tmp_path / job / "pytorch_model.bin", weights_only=True)
    assert_same({name: value.float() for name, value in weights.items()},
                {name: value.float() for name, value in expected.items()})
