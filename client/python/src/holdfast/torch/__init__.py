"""Holdfast for PyTorch.

    import holdfast.torch as hf
    ckpt = hf.Checkpointer(job="nanogpt", state={"model": model, "optim": optim, "sched": sched})
    for step in range(ckpt.restore(), total):    # 0 on a fresh start
        loss = train_step(...)                   # optimizer.step() is guarded: no torn snapshots
        ckpt.save(step)                          # returns at once
    ckpt.close()                                 # flushes, raises what went wrong in the background
"""

from ..client import Tier, Version
from ..errors import HoldfastError
from .checkpointer import Checkpointer
from .collectives import CollectiveRecorder, record_collectives
from .dcp import StorageReader, StorageWriter
from .restoring import StateMismatchError
from .values import UnsupportedValueError

__all__ = ["Checkpointer", "CollectiveRecorder", "HoldfastError", "StateMismatchError", "StorageReader",
           "StorageWriter", "Tier", "UnsupportedValueError", "Version"]
