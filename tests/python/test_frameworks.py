"""Holdfast in the real packages of other people: transformers, Lightning, DeepSpeed."""

import os

import pytest
import torch

import frameworks
from ranks import KILLED, run

for package in ("transformers", "lightning", "deepspeed"):
    pytest.importorskip(package)


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


@pytest.mark.parametrize("world", [1, 2])
def test_trainer_killed_and_resumed_is_as_uninterrupted(cluster, job, tmp_path, world):
    steps = 18 // world
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": str(world)}
    reference = run(world, frameworks.train_hf, job + "-whole", str(tmp_path), 0,
        environment=torchrun)
    for kill_after in (4, steps // 3 * 2):  # within an epoch; where one ends
        run(world, frameworks.train_hf, job, str(tmp_path), kill_after, expect=KILLED,
            environment=torchrun)
    found = run(world, frameworks.train_hf, job, str(tmp_path), 0,
        environment=torchrun)
    for (began, ended, state, _), (_, _, expected, _) in zip(found, reference):
        assert (began, ended) == (steps // 3 * 2, steps)
        assert_same(state, expected)
