"""What trainers do beside steps, told so that it is not taken for a hang."""

import collections

import holdfast.torch as hf
import pytest
import torch
from holdfast import Client
from holdfast.torch import phases


class Listener:
    """In the place of a client."""

    def __init__(self):
        self.open = collections.Counter()
        self.heard = []

    def begin_phase(self, phase):
        self.open[phase] += 1
        self.heard.append(phase)

    def end_phase(self, phase):
        self.open[phase] -= 1

    def quiet(self):
        return not +self.open and not -self.open


@pytest.fixture
def listener():
    listener = Listener()
    phases.follow(listener)
    return listener


def test_phases_nest_and_end_whatever_is_raised(listener):
    with pytest.raises(ValueError):
        with hf.phase(hf.Phase.EVALUATION), hf.phase(hf.Phase.EVALUATION):
            assert listener.open[hf.Phase.EVALUATION] == 2
            raise ValueError
    assert listener.quiet()
    phases.end(hf.Phase.EVALUATION)
    assert listener.quiet()


def test_a_client_that_comes_later_hears_what_is_open():
    with hf.phase(hf.Phase.EVALUATION):
        late = Listener()
        phases.follow(late)
        assert late.open[hf.Phase.EVALUATION] == 1
    assert late.quiet()


def test_a_closed_client_does_no_harm(listener):
    class Closed(Listener):
        def begin_phase(self, phase):
            raise hf.HoldfastError("closed")
    closed = Closed()
    phases.follow(closed)
    with hf.phase(hf.Phase.EVALUATION):
        assert listener.open[hf.Phase.EVALUATION] == 1
    assert listener.quiet()


def test_torch_compile_says_when_it_compiles(listener):
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    phases.follow(Listener())  # as any connection does
    model(torch.ones(2, 4))
    assert hf.Phase.COMPILE in listener.heard
    assert listener.quiet()
    heard = len(listener.heard)
    model(torch.ones(2, 4))
    assert len(listener.heard) == heard, "nothing is compiled the second time"


def test_saving_and_restoring_are_phases(cluster, job, monkeypatch):
    said = []
    begin = Client.begin_phase
    monkeypatch.setattr(Client, "begin_phase",
                        lambda self, phase: (said.append(phase), begin(self, phase)))
    with hf.Checkpointer(job, {"model": torch.nn.Linear(4, 4)}) as ckpt:
        ckpt.restore()
        assert said == [hf.Phase.CHECKPOINT]
        ckpt.save(1)
        ckpt.wait(1)
        assert said == [hf.Phase.CHECKPOINT] * 2
