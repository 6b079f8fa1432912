"""The example's model, distributed in ways that the example does not have: tensor parallel, and a pipeline."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STAGES = 2
MICROBATCHES = 4


def data_rank(mode):
    """Ranks with the same number train on the same data."""
    if mode == "tp":
        return 0
    if mode == "pipeline":
        return dist.get_rank() % (dist.get_world_size() // STAGES)
    return dist.get_rank()


def spread(model, mode, example):
    if mode == "tp":
        return tensor_parallel(model)
    if mode == "pipeline":
        return Pipeline(model)
    return example.spread(model, mode, torch.device("cpu"))


def tensor_parallel(model):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        block.drop = nn.Identity()  # ranks have different generators, and need the same values
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


class FirstStage(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.token, self.place = model.token, model.place
        self.blocks = model.blocks[:len(model.blocks) // 2]

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x


class LastStage(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.blocks = model.blocks[len(model.blocks) // 2:]
        self.norm, self.head = model.norm, model.head

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Pipeline(nn.Module):
    """Two stages. The ranks of a stage are data parallel. The forward pass is a whole 1F1B step: it
    also computes the gradients, and the loss that it returns is a leaf."""

    def __init__(self, model):
        super().__init__()
        mesh = dist.init_device_mesh("cpu", (STAGES, dist.get_world_size() // STAGES),
                                     mesh_dim_names=("stage", "data"))
        index = mesh.get_local_rank("stage")
        self.last = index == STAGES - 1
        self.part = nn.parallel.DistributedDataParallel(
            LastStage(model) if self.last else FirstStage(model), process_group=mesh.get_group("data"))
        stage = PipelineStage(self.part, index, STAGES, torch.device("cpu"), group=mesh.get_group("stage"))
        self.schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda logits, targets: F.cross_entropy(
            logits.flatten(0, 1), targets.flatten()))

    def forward(self, tokens, targets):
        if not self.last:
            self.schedule.step(tokens, return_outputs=False)
            return torch.zeros((), requires_grad=True)
        losses = []
        self.schedule.step(target=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().detach().requires_grad_()
