"""Third-party optimizers: a restore restores all of their state and changes nothing else."""

import random

import holdfast
import holdfast.torch as hf
import numpy
import pytest
import torch
from test_torch import everything, seed_all
from torch import nn


class Restless(torch.optim.Optimizer):
    """Counts in its groups, draws random numbers, decays weights at any learning rate, and gets more
    state after some steps: numbers, lists and tensors."""

    calls = 0

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr, "k": 0})

    def step(self, closure=None):
        type(self).calls += 1
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                with torch.no_grad():
                    p.mul_(0.999)
                    if p.grad is not None:
                        p.add_(p.grad + 0.01 * torch.randn_like(p), alpha=-group["lr"])
                        state = self.state[p]
                        state["count"] = state.get("count", 0) + 1
                        if group["k"] >= 3:
                            state["gain"] = state.get("gain", 1.0) * 1.5
                            state.setdefault("history", []).append(group["k"])
                            state.setdefault("worker_error", torch.zeros_like(p)).add_(p.grad)
                            state.setdefault("server_error", torch.zeros(p.numel() // 2 + 1))
                            state["server_error"] += group["k"]
                            p.sub_(state["worker_error"], alpha=0.001 * state["gain"])


def build(kind, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    return {"model": model, "optim": kind(model.parameters())}


def train(state):
    def closure():
        state["optim"].zero_grad()
        loss = ((state["model"](x) - 1) ** 2).mean()
        loss.backward()
        return loss
    x = torch.randn(16, 6)
    loss = closure()
    state["optim"].step(*([closure] if isinstance(state["optim"], torch.optim.LBFGS) else []))
    return loss.item()


def generators():
    return (random.getstate(), torch.get_rng_state().tolist(),
            numpy.random.get_state()[1].tolist())


KINDS = [Restless, lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3),
         lambda p: torch.optim.AdamW(p, amsgrad=True), lambda p: torch.optim.SGD(p, 0.1, momentum=1),
         lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.Muon(p)]
NAMES = ["restless", "lbfgs", "adamw", "sgd", "adafactor", "muon"]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_fresh_start_changes_nothing(cluster, job, kind):
    if kind is KINDS[-1]:
        kind = lambda p: torch.optim.Muon([q for q in p if q.dim() == 2])
    seed_all()
    state = build(kind)
    for p in state["model"].parameters():
        p.grad = torch.ones_like(p)
    Restless.calls = 0
    before, drawn = everything(state), generators()
    grads = [p.grad for p in state["model"].parameters()]
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 0
    assert everything(state) == before and generators() == drawn
    assert not state["optim"].state and Restless.calls == 0
    assert all(p.grad is g for p, g in zip(state["model"].parameters(), grads))


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_restored_optimizer_continues_as_the_original(cluster, job, kind, steps, with_gradients):
    if kind is KINDS[-1]:
        kind = lambda p: torch.optim.Muon([q for q in p if q.dim() == 2])
    seed_all()
    state = build(kind)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 0
        for step in range(steps):
            train(state)
            assert ckpt.save(step, wait_for_slot=10)
        ckpt.wait(steps - 1)
    expected = everything(state)
    losses = [train(state) for _ in range(4)]

    again = build(kind, seed=7)
    if with_gradients:  # as left by a sanity check, a warm-up or a profile
        again["model"](torch.randn(2, 6)).sum().backward()
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == steps
    assert everything(again) == expected
    assert [train(again) for _ in range(4)] == losses
    assert everything(again) == everything(state)


def test_state_that_is_newer_than_the_version_is_removed(cluster, job):
    state = build(Restless)
    with hf.Checkpointer(job, state) as ckpt:
        train(state)
        ckpt.save(0)
        ckpt.wait(0)
        expected = everything(state)
    for _ in range(4):
        train(state)
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 1
    assert everything(state) == expected


def test_a_failed_restore_leaves_the_optimizer_as_it_was(cluster, job):
    state = build(torch.optim.AdamW)
    train(state)
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    other = build(torch.optim.AdamW, seed=3) | {"more": torch.ones(3)}
    before = everything({"model": other["model"], "optim": other["optim"]})
    with hf.Checkpointer(job, other) as ckpt:
        with pytest.raises(hf.StateMismatchError, match="more"):
            ckpt.restore()
        assert ckpt.restore(dry_run=True) == 1
        assert not other["optim"].state
        assert everything({"model": other["model"], "optim": other["optim"]}) == before


def test_another_optimizer_does_not_fit(cluster, job):
    state = build(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    train(state)
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    other = build(torch.optim.AdamW, seed=3)
    with hf.Checkpointer(job, other) as ckpt:
        with pytest.raises(hf.StateMismatchError, match="is a AdamW, the version has .* SGD"):
            ckpt.restore()


def test_the_error_of_a_lazy_module_names_the_remedy(cluster, job):
    lazy = nn.Sequential(nn.LazyLinear(4))
    with hf.Checkpointer(job, {"model": lazy}) as ckpt:
        assert ckpt.restore() == 0
        with pytest.raises(holdfast.UnsupportedError, match="run one batch through it"):
            ckpt.save(0)
        lazy(torch.ones(1, 3))
        ckpt.save(0)
        ckpt.wait(0)
    again = nn.Sequential(nn.LazyLinear(4))
    with hf.Checkpointer(job, {"model": again}) as ckpt:
        with pytest.raises(holdfast.UnsupportedError, match="run one batch through it"):
            ckpt.restore()
        again(torch.ones(1, 3))
        assert ckpt.restore() == 1
    assert everything({"m": again}) == everything({"m": lazy})
