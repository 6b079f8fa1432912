"""What Lightning does between steps."""

from __future__ import annotations

import sys
from typing import Any

if "lightning" not in sys.modules and "pytorch_lightning" in sys.modules:
    from pytorch_lightning import Callback as _Callback
else:
    from lightning.pytorch import Callback as _Callback

from ...client import Phase
from .. import phases

__all__ = ["PhaseCallback"]


class PhaseCallback(_Callback):
    """Says when Lightning evaluates, so that a rank that is busy with it is not taken for hung. For
    trainings whose own ranks are a job, saved by a `Checkpointer`:

        trainer = Trainer(callbacks=[hf.PhaseCallback()])
    """

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        phases.begin(Phase.EVALUATION)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        phases.end(Phase.EVALUATION)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        phases.begin(Phase.EVALUATION)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        phases.end(Phase.EVALUATION)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        phases.begin(Phase.EVALUATION)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        phases.end(Phase.EVALUATION)
