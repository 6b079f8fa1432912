"""Optimizer steps that race with the copy: no torn versions with the guard, torn ones without it."""

import os

import holdfast.torch as hf
import torch

TRIES = int(os.environ.get("HOLDFAST_TRIES", "250"))
SIZE = 1 << 15  # elements of a tensor


def count_torn_versions(job, tries, enough, **options):
    """Each try is a start of the job. It restores the version of the previous try, sets every element
    to the number of the try, saves, and steps at once. Returns how many versions contained two
    numbers."""
    model = torch.nn.ParameterDict({f"p{i}": torch.nn.Parameter(torch.zeros(SIZE))
                                    for i in range(8)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torn = 0
    for number in range(tries):
        with hf.Checkpointer(job, {"model": model, "optim": optimizer}, random_states=False,
                             **options) as ckpt:
            assert ckpt.restore() == number
            torn += number > 0 and not all((p == number - 1).all() for p in model.values())
            if torn >= enough:
                break
            with torch.no_grad():
                for parameter in model.values():
                    parameter.fill_(number)
                    parameter.grad = -torch.ones(SIZE)
            assert ckpt.save(number)
            optimizer.step()
            ckpt.wait(number)
    return torn


def test_no_version_is_torn(cluster, job):
    assert count_torn_versions(job, tries=TRIES + 1, enough=1) == 0


def test_without_the_guard_versions_are_torn(cluster, job):
    assert count_torn_versions(job, tries=TRIES + 1, enough=3, guard_steps=False) == 3


def test_cuda_graphs_give_a_warning_and_no_save_during_capture(cluster, job, monkeypatch, caplog):
    """Tests the checks for tensors on a GPU, without a GPU."""
    import holdfast
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.AdamW(model.parameters())
    with hf.Checkpointer(job, {"model": model, "optim": optim}) as ckpt:
        ckpt._check_graphs()
        assert not caplog.records
    optim.param_groups[0]["capturable"] = True
    with hf.Checkpointer(job, {"model": model, "optim": optim}) as ckpt:
        ckpt._check_graphs()
        ckpt._check_graphs()
        assert len(caplog.records) == 1 and "before each graph.replay()" in caplog.text
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        try:
            ckpt._check_graphs()
        except holdfast.FailedPreconditionError as error:
            assert "while a CUDA graph is captured" in str(error)
        else:
            raise AssertionError("nothing was raised")
