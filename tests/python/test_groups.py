"""All settings of every parameter group are restored."""

import holdfast.torch as hf
import torch
from torch import nn


def build(rates):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 3) for _ in rates])
    groups = [{"params": list(layer.parameters()), "lr": lr, "weight_decay": lr / 7, "betas": (0.5 + lr, 0.9)}
              for layer, lr in zip(model, rates)]
    return {"model": model, "optim": torch.optim.AdamW(groups)}


def settings(state):
    return [{key: value for key, value in group.items() if key != "params"}
            for group in state["optim"].param_groups]


def step(state):
    for layer in state["model"]:
        layer(torch.ones(2, 3)).sum().backward()
    state["optim"].step()


def test_the_settings_of_every_group_are_restored(cluster, job):
    saved = build([0.1, 0.02, 0.003])
    with hf.Checkpointer(job, saved) as ckpt:
        step(saved)
        # Changes each group separately, as a scheduler does.
        for group, factor in zip(saved["optim"].param_groups, (0.5, 0.25, 0.125)):
            group["lr"] *= factor
        assert ckpt.save(0, wait_for_slot=10)
        ckpt.wait(0)
    wanted = settings(saved)
    assert len({group["lr"] for group in wanted}) == 3

    again = build([0.9, 0.8, 0.7])
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 1
    assert settings(again) == wanted
