"""holdfast.torch over several ranks: real processes, gloo, one agent."""

import pytest
import training
from ranks import KILLED, run


@pytest.mark.parametrize("kind, world", [("ddp", 2), ("fsdp", 3), ("tp_fsdp", 4)])
def test_a_killed_and_restored_training_equals_an_uninterrupted_one(cluster, job, tmp_path, kind, world):
    where = {"HOLDFAST_TEST_REFERENCE": str(tmp_path / "reference")}
    run(world, training.uninterrupted_then_killed, kind, job, 6, 4, environment=where,
        expect=KILLED)
    run(world, training.resume, kind, job, 6, 4, environment=where)


def test_any_world_restores_versions_of_another(cluster, job):
    for stage, (kind, world) in enumerate(
            [("tp_fsdp", 4), ("fsdp", 2), ("fsdp", 3), ("plain", 1), ("hsdp", 4), ("ddp", 3),
             ("tp_fsdp", 4)]):
        run(world, training.change_world, kind, job, stage)


def test_replicas_are_saved_once_and_evenly(cluster, job):
    answers = run(4, training.save_once, "ddp", job, 3000)
    copied = [bytes for bytes, _, _ in answers]
    _, total, savers = answers[0]
    assert total < sum(copied) < total * 1.05
    assert max(copied) - min(copied) < 0.01 * max(copied)
    # Each rank saves a part of the large tensors and all of the tiny one, so a restore of the tiny
    # tensor needs no other rank.
    assert savers["w2"] == savers["tiny"] == [0, 1, 2, 3]


def test_uneven_shards_of_shards(cluster, job):
    """Each half has 49 rows, over two ranks."""
    run(4, training.save_initial, "tp_fsdp", job, 98)
    run(1, training.compare_initial, job, 98)
