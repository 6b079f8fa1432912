"""Which tensors of several ranks are replicas, and which are rank-local."""

import json

import holdfast
import holdfast.torch as hf
import local_state
import pytest
from cluster import wait_until
from ranks import run


def test_rank_local_tensors_of_one_name_stay_separate(cluster, job):
    run(2, local_state.save_own, job)
    for rank, found in enumerate(run(2, local_state.restore_own, job)):
        assert found == {"tree": [rank + 1.0], "expert": [rank + 1.0], "small": [rank + 1.0],
                         "perm": [rank + 1] * (20000 + rank), "buffer": [rank + 1.0]}


def test_another_number_of_ranks_needs_decisions(cluster, job):
    run(2, local_state.save_own, job)
    for world in (1, 3):
        for refused, found in run(world, local_state.reshape_own, job):
            for text in ("'ef.error_feedback', 'ef.small': each of 2 ranks", "'expert.weight'",
                         "'loader'", f"the state of {world} ranks",
                         "on_reshape={'ef': 'first' | 'mean' | 'zero' | 'drop'}"):
                assert text in refused, refused
            for action, value in dict(first=1.0, mean=1.5, zero=0.0, drop=-1.0).items():
                expected = dict.fromkeys(("tree", "small", "expert", "buffer"), [value])
                perm = [1] * 20000 if action == "first" else [-1] * 20000
                assert found[action] == {**expected, "perm": perm}, action


def test_a_version_of_one_rank_declares_no_replicas(cluster, job):
    run(1, local_state.save_alone, job)
    for refused, found in run(2, local_state.reshape_own, job):
        assert "'ef.error_feedback', 'ef.small': each of 1 ranks" in refused
        assert [found[action]["tree"] for action in ("first", "mean", "zero", "drop")] == \
            [[5.0], [5.0], [0.0], [-1.0]]


def test_declared_replicas_restore_in_any_world(cluster, job):
    run(2, local_state.save_declared, job)
    assert run(3, local_state.restore_declared, job) == [{"tree": [4.0], "perm": [4]}] * 3


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_rank_local_tensors_do_not_affect_shared_ones(cluster, job, mode):
    answers = run(2, local_state.save_mixed, job, mode)
    shared = 4 * (64 * 1000 + 4 * 1000 + 1)
    copied = sum(bytes for bytes, _ in answers)
    assert shared * 3 < copied < shared * 3 * 1.1  # including two moments of the optimizer
    for (_, saved), found in zip(answers, run(2, local_state.restore_mixed, job, mode)):
        assert found.keys() == saved.keys()
        for name in saved:
            if mode == "ddp" and "running" in name:
                assert found[name] == answers[0][1][name], name
            else:
                assert found[name] == saved[name], name


def test_a_partial_state(cluster, job):
    names, = run(1, local_state.save_trainable, job)
    # The entry `some` has the same tensors under other names.
    assert names == ["model.lora.bias", "model.lora.weight"]


def test_versions_of_releases_without_rank_local_tensors(cluster, job):
    run(2, local_state.save_in_format_1, job)
    for found in run(3, local_state.restore_own, job):
        assert found == {"tree": [5.0], "small": [5.0], "expert": [5.0], "buffer": [5.0],
                         "perm": [5] * 20000}


def test_decisions_are_checked(job):
    with pytest.raises(holdfast.InvalidArgumentError, match="on_reshape.'ef'. is 'most'"):
        hf.Checkpointer(job, {"ef": {}}, on_reshape={"ef": "most"})
    with pytest.raises(holdfast.InvalidArgumentError, match="has no entry 'fe'"):
        hf.Checkpointer(job, {"ef": {}}, on_reshape={"fe": "first"})


def disputes_of(cluster, job):
    """Step → sentences of each disputed version."""
    versions = json.loads(cluster.cli("versions", job, "-o", "json").stdout)["versions"]
    return {one["step"]: one["disputed"] for one in versions if one["disputed"]}


def kinds_of(cluster, job):
    """The kinds of the job's incidents."""
    answer = json.loads(cluster.cli("incidents", "--job", job, "-o", "json").stdout)
    return [one["kind"] for one in answer["incidents"]]


@pytest.mark.parametrize("world, who", [(2, "ranks 0, 1 differ from each other"),
                                        (3, "rank 1 differs from ranks 0, 2")])
def test_replicas_that_diverge_are_found_and_named(cluster, job, world, who):
    count = run(world, local_state.diverge, job, 0, 1)[0]
    assert 16 <= count <= 32 * world
    disputed = disputes_of(cluster, job)
    newest = 2 * count - 1
    assert newest in disputed, "not found within as many saves as there are samples"
    assert min(disputed) >= count
    sentence, = disputed[newest]
    assert sentence.startswith("'model.0.weight', bytes ") and sentence.endswith(who), sentence
    assert who in cluster.cli("versions", job, "-o", "wide").stdout
    status = cluster.cli("status")
    assert status.returncode == 2 and "DISPUTED" in status.stdout, status.stdout
    assert kinds_of(cluster, job) == ["replicas differ"]
    # The dispute is stored, and a restart from a disputed version opens an incident.
    cluster.coordinator.kill()
    cluster.coordinator.wait()
    cluster.start_coordinator()
    wait_until(lambda: "DISPUTED" in cluster.cli("status").stdout, what="the stored dispute")
    run(world, local_state.diverge, job, 2 * count, 1)
    assert "disputed version restored" in kinds_of(cluster, job)


def test_a_healthy_job_opens_no_dispute(cluster, job):
    saves = 50
    count = run(2, local_state.train_healthy, job, saves)[0]
    assert 1 < count <= 64
    disputed = disputes_of(cluster, job)
    # Bytes are compared, so a NaN equals itself, but not a NaN with other bits.
    assert disputed and min(disputed) >= saves, disputed
    assert all(one.startswith("'nan.x', bytes ") for text in disputed.values() for one in text)
    assert kinds_of(cluster, job) == ["replicas differ"]


def test_a_single_rank_sends_no_samples(cluster, job):
    names, extras = run(1, local_state.save_ddp_alone, job)[0]
    assert sorted(names) == ["model.bias", "model.weight"]
    assert "holdfast.samples" not in extras


def test_a_dispute_ends_when_the_bytes_are_equal_in_any_sample(cluster, job):
    first, second = run(2, local_state.change_samples, job)[0]
    assert first != second
    assert kinds_of(cluster, job) == ["replicas differ"]
    assert disputes_of(cluster, job) == {}
    assert f"DISPUTED job {job}:" not in cluster.cli("status").stdout
