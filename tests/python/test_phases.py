"""Reports of what trainers do outside training steps, so that it is not taken for a hang."""

import collections

import holdfast.torch as hf
import pytest
import torch
from holdfast import Client
from holdfast.torch import phases


class Listener:
    """A fake client that records phases."""

    def __init__(self):
        self.open = collections.Counter()
        self.begun = []

    def begin_phase(self, phase):
        self.open[phase] += 1
        self.begun.append(phase)

    def end_phase(self, phase):
        self.open[phase] -= 1

    def quiet(self):
        return not +self.open and not -self.open


@pytest.fixture
def listener():
    listener = Listener()
    phases.follow(listener)
    return listener


def test_phases_nest_and_end_after_exceptions(listener):
    with pytest.raises(ValueError):
        with hf.phase(hf.Phase.EVALUATION), hf.phase(hf.Phase.EVALUATION):
            assert listener.open[hf.Phase.EVALUATION] == 2
            raise ValueError
    assert listener.quiet()
    phases.end(hf.Phase.EVALUATION)
    assert listener.quiet()


def test_a_later_client_gets_the_open_phases():
    with hf.phase(hf.Phase.EVALUATION):
        late = Listener()
        phases.follow(late)
        assert late.open[hf.Phase.EVALUATION] == 1
    assert late.quiet()


def test_a_closed_client_does_not_disturb_others(listener):
    class Closed(Listener):
        def begin_phase(self, phase):
            raise hf.HoldfastError("closed")
    closed = Closed()
    phases.follow(closed)
    with hf.phase(hf.Phase.EVALUATION):
        assert listener.open[hf.Phase.EVALUATION] == 1
    assert listener.quiet()


def test_torch_compile_reports_compilations(listener):
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    phases.follow(Listener())  # as every connection does
    model(torch.ones(2, 4))
    assert hf.Phase.COMPILE in listener.begun
    assert listener.quiet()
    begun = len(listener.begun)
    model(torch.ones(2, 4))
    assert len(listener.begun) == begun, "the second call must not compile"


def test_saving_and_restoring_are_phases(cluster, job, monkeypatch):
    phases_begun = []
    begin = Client.begin_phase
    monkeypatch.setattr(Client, "begin_phase",
                        lambda self, phase: (phases_begun.append(phase), begin(self, phase)))
    with hf.Checkpointer(job, {"model": torch.nn.Linear(4, 4)}) as ckpt:
        ckpt.restore()
        assert set(phases_begun) == {hf.Phase.CHECKPOINT}
        phases_begun.clear()
        ckpt.save(1)
        assert set(phases_begun) == {hf.Phase.CHECKPOINT}
        ckpt.wait(1)
