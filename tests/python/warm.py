"""Imports the packages that every rank needs, once."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed.fsdp  # noqa: E402, F401
import torch.distributed.tensor.parallel  # noqa: E402, F401
import torch.nn.parallel  # noqa: E402, F401

import holdfast.torch  # noqa: E402, F401

torch.set_num_threads(1)
