"""States whose distribution over ranks no single class of torch describes."""

import os

import layouts
import pytest
import torch
from cluster import Cluster
from ranks import KILLED, run


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name].reshape(-1).view(torch.uint8),
                           value.reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("kind, world", [("normalised", 2), ("two groups", 4)])
def test_a_killed_and_restored_training_equals_an_uninterrupted_one(cluster, job, kind, world):
    expected = run(world, layouts.train_uninterrupted, kind, job)
    run(world, layouts.train_and_die, kind, job, expect=KILLED)
    for (began, found), reference in zip(run(world, layouts.resume_training, kind, job), expected):
        assert began == layouts.KILLED_AT
        assert_same(found, reference)


def test_a_rank_reads_the_index_only_in_another_world(cluster, job):
    log = cluster.root / "n0/agent.log"

    def indexes():
        return sum("IndexMade" in line and f"job={job} " in line
                   for line in log.read_text().splitlines())

    saved = run(3, layouts.save_sharded, job)
    for found in run(3, layouts.restore_sharded, job):
        assert_same(found, saved[0])
    assert indexes() == 0
    for found in run(2, layouts.restore_sharded, job):
        assert_same(found, saved[0])
    # The two ranks of the node share one.
    assert indexes() == 1


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.1])
def test_a_killed_asynchronous_save_leaves_no_torn_version(cluster, job, moment):
    run(1, layouts.save_asynchronously_and_die, job, moment, expect=KILLED)
    [found] = run(1, layouts.load, job)
    assert found["step"] in (1, 2)
    assert torch.equal(found["w"], layouts.tensors_of(found["step"])["w"])


def test_one_large_tensor(job, tmp_path, monkeypatch):
    sizes = os.environ.get("HOLDFAST_LARGE")
    if not sizes:
        pytest.skip("HOLDFAST_LARGE=1,8 tests tensors of 1 and 8 GiB, which take 3 and 16 GiB of memory")
    for gib in map(int, sizes.split(",")):
        folder = None if gib < 4 else str(tmp_path)  # no machine of a test needs three times 8 GiB
        large = Cluster(arena_bytes=(gib << 31) + (64 << 20))
        try:
            large.start()
            monkeypatch.setenv("HOLDFAST_SOCKET", large.socket())
            run(1, layouts.save_large, job, gib, folder, timeout=560, expect=KILLED)
            assert run(1, layouts.restore_large, job, gib, folder, timeout=560) == [True]
        finally:
            large.stop()
