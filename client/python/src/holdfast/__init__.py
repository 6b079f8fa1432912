"""Holdfast: checkpoints of a training process, stored where its failure cannot reach them.

PyTorch loops use `holdfast.torch.Checkpointer`. This package is the layer below it, for all other
programs:

    import numpy, holdfast
    weights = numpy.zeros((1024, 1024), numpy.float32)
    with holdfast.Client("my-job", [holdfast.Tensor.of("weights", weights)]) as client:
        restored = client.restore()                     # None: a fresh start
        for step in range(restored.version.step + 1 if restored else 0, 1000):
            gradient = ...
            client.guard()                              # before the tensors change
            weights -= gradient
            client.save(step)                           # returns at once

Errors are `HoldfastError` and its subclasses. Messages go to the logger "holdfast".
"""

from . import plugins, records
from ._native import version_string as _version_string
from .client import Client, Phase, Piece, Restored, Tier, Version, VersionReader
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
from .tensors import Device, DType, Tensor

__version__: str = _version_string()
__all__ = ["Client", "DType", "Device", "Phase", "Piece", "Restored", "Tensor", "Tier",
           "Version", "VersionReader", "plugins", "records", *_errors]
