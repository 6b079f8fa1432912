"""Holdfast for PyTorch.

    import holdfast.torch as hf
    ckpt = hf.Checkpointer(job="nanogpt", state={"model": model, "optim": optim, "sched": sched})
    for step in range(ckpt.restore(), total):    # 0 on a fresh start
        loss = train_step(...)                   # optimizer.step() is guarded: no torn snapshots
        ckpt.save(step)                          # returns at once
    ckpt.close()                                 # waits until the saves are sealed
"""

from typing import TYPE_CHECKING, Any

from ..client import Phase, Tier, Version
from ..errors import HoldfastError
from .checkpointer import Checkpointer
from .collectives import CollectiveRecorder, record_collectives
from .dcp import StorageReader, StorageWriter
from .files import file_tensor
from .health import Failures, Health
from .identity import replicated
from .phases import phase
from .saved import StateMismatchError
from .values import UnsupportedValueError

if TYPE_CHECKING:
    from .frameworks.deepspeed_engine import DeepSpeedEngine
    from .frameworks.lightning_io import CheckpointIO
    from .frameworks.lightning_phases import PhaseCallback
    from .frameworks.lightning_random import RandomStatesCallback
    from .frameworks.trainer_callback import TrainerCallback

__all__ = ["CheckpointIO", "Checkpointer", "CollectiveRecorder", "DeepSpeedEngine", "Failures",
           "Health", "HoldfastError", "Phase", "PhaseCallback", "RandomStatesCallback",
           "StateMismatchError", "StorageReader", "StorageWriter", "Tier", "TrainerCallback",
           "UnsupportedValueError", "Version", "file_tensor", "phase", "record_collectives",
           "replicated"]

#: Classes for other frameworks. Each is imported with its framework when it is first used.
_FRAMEWORKS = {"CheckpointIO": "lightning_io", "DeepSpeedEngine": "deepspeed_engine",
               "PhaseCallback": "lightning_phases", "RandomStatesCallback": "lightning_random",
               "TrainerCallback": "trainer_callback"}


def __getattr__(name: str) -> Any:
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib
    return getattr(importlib.import_module(f".frameworks.{_FRAMEWORKS[name]}", __name__), name)
