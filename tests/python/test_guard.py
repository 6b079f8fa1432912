"""Optimizer steps that race the copy: never a torn version with the guard, torn ones without it."""

import os

import holdfast.torch as hf
import torch

TRIES = int(os.environ.get("HOLDFAST_TRIES", "250"))
SIZE = 1 << 15  # elements of a tensor


def torn_ones(job, tries, enough, **options):
    """Each try is a start of the job: it restores what the one before has saved, gives every
    element the number of the try, saves, and steps at once. Returns how many versions had two
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
    assert torn_ones(job, tries=TRIES + 1, enough=1) == 0


def test_without_the_guard_versions_are_torn(cluster, job):
    assert torn_ones(job, tries=TRIES + 1, enough=3, guard_steps=False) == 3


def test_graphs_are_warned_of_and_not_saved_from(cluster, job, monkeypatch, caplog):
    """Without a GPU: what the checkpointer does where its tensors are on one."""
    import holdfast
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.AdamW(model.parameters())
    with hf.Checkpointer(job, {"model": model, "optim": optim}) as ckpt:
        ckpt._heed_graphs()
        assert not caplog.records
    optim.param_groups[0]["capturable"] = True
    with hf.Checkpointer(job, {"model": model, "optim": optim}) as ckpt:
        ckpt._heed_graphs()
        ckpt._heed_graphs()
        assert len(caplog.records) == 1 and "before each graph.replay()" in caplog.text
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        try:
            ckpt._heed_graphs()
        except holdfast.FailedPreconditionError as error:
            assert "while a CUDA graph is captured" in str(error)
        else:
            raise AssertionError("nothing was raised")
