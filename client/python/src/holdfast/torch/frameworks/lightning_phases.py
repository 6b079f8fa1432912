"""Marks what Lightning does between steps."""

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
    """Marks Lightning's evaluations, so that an evaluating rank is not reported as hung. For
    trainings that save their ranks as a job with a `Checkpointer`:

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
