"""Saves Hugging Face's Trainer every step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import tempfile
from typing import Any, Iterator, Mapping

import torch
import transformers
from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState

from ...client import Phase, Tier
from ...errors import FailedPreconditionError, HoldfastError, UnsupportedError
from .. import phases, random_state
from ..checkpointer import Checkpointer
from ..plan import agreed_run_id

__all__ = ["TrainerCallback"]

_logger = logging.getLogger("holdfast")
_LOG_ENTRIES_MAX = 1000
#: A file in the Trainer's own checkpoints, and the only one in the folder that resume() makes.
_STATE = "trainer_state.json"


class _Position:
    """The Trainer's position in its training, as an entry of the state."""

    def __init__(self) -> None:
        self.state: TrainerState | None = None
        self.callbacks: dict[str, Any] = {}
        #: When the state is saved: "epoch" (an epoch begins), "step" (a step begins) or "end".
        self.moment = ""
        self.restored: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        if self.state is None:
            return {}
        fields = {field.name: getattr(self.state, field.name)
                  for field in dataclasses.fields(self.state)}
        fields["log_history"] = fields["log_history"][-_LOG_ENTRIES_MAX:]
        fields["stateful_callbacks"] = self.callbacks
        return {"moment": self.moment, "trainer": fields}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state


class TrainerCallback(transformers.TrainerCallback):
    """Saves a `transformers.Trainer` every step, and resumes it from the newest version.

        callback = hf.TrainerCallback(job="my-run")
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume(trainer))

    Model, optimizer, scheduler, scaler, random generators and the Trainer's own state are restored.
    The Trainer skips the data that it has seen, as for its own checkpoints. The result of a training
    that was killed is bit for bit that of an uninterrupted one, if the order of the data depends on
    the Trainer's seed alone. It differs if collators or datasets use the global generators.

    A step is saved after all its work, including evaluation and logging, directly before the next
    step begins. From then until the optimizer's step, code that changes parameters must call
    `guard()` first. The callback supports Trainers on one device and under DistributedDataParallel,
    but not with DeepSpeed.

    Args:
        job: [A-Za-z0-9._-]{1,128}; the same on all ranks and at each start.
        every: the number of steps between two saves. The last step is always saved.
        state: more entries for `Checkpointer`, for example a data set that has state_dict().
        timeout: seconds for restoring, and for the last save.
        checkpointer_options: further arguments of `Checkpointer`.
    """

    def __init__(self, job: str, *, every: int = 1, state: Mapping[str, Any] | None = None,
                 timeout: float = 120.0, **checkpointer_options: Any) -> None:
        if every < 1:
            raise ValueError(f"every={every}: must be at least 1")
        self.job, self.every, self.timeout = job, every, timeout
        self._more = dict(state or {})
        self._options = checkpointer_options
        #: None between trainings.
        self.checkpointer: Checkpointer | None = None
        self._run_id: str | None = None
        self._trainer: Any = None
        self._position = _Position()
        self._found: int | None = None  # the newest saved step, 0: none; None: not looked up yet
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._random: dict[str, Any] | None = None
        self._due = self._saved = 0
        self._phase: Phase | None = None

    # -------------------------------------------------------------------------------- resuming

    def resume(self, trainer: Any) -> str | None:
        """Returns the argument for `Trainer.train(resume_from_checkpoint=…)`. None: a fresh start.
        All ranks call this.

        The result is a folder that has only the Trainer's state. The tensors are filled in place in
        `on_train_begin`. Until then the Trainer's method that reads weights skips this folder.
        """
        self._trainer = trainer
        if trainer.is_deepspeed_enabled:
            raise UnsupportedError("the Trainer uses DeepSpeed, which saves the state itself: use "
                                   "hf.DeepSpeedEngine")
        position = self._find_newest(trainer.args.world_size)
        if position is None:
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-resume-")
        folder = pathlib.Path(self._folder.name)
        (folder / _STATE).write_text(json.dumps(position["trainer"]))
        _read_no_weights_from(str(folder), trainer)
        return str(folder)

    def _find_newest(self, world: int) -> dict[str, Any] | None:
        """The position of the newest version, read without its tensors. None: there is no version."""
        if self._run_id is None and not os.environ.get("HOLDFAST_RUN_ID"):
            self._run_id = agreed_run_id(world)
        position = _Position()
        with Checkpointer(self.job, {"trainer": position}, run_id=self._run_id,
                          random_states=False, **self._client_options()) as peek:
            self._found = max(0, peek.restore(strict=False, timeout=self.timeout) - 1)
        return position.restored if self._found else None

    def _client_options(self) -> dict[str, Any]:
        return {key: value for key, value in self._options.items()
                if key not in ("guard_steps", "random_states", "on_reshape", "trainable_only")}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl,
                       **kwargs: Any) -> None:
        """Restores the state in place.

        Raises:
            FailedPreconditionError: the job has a version, but the Trainer does not resume from it.
            StateMismatchError: model or optimizer differ from the version.
        """
        self._close()
        if self._found is None:
            self._find_newest(args.world_size)
        if self._found and state.global_step != self._found:
            raise FailedPreconditionError(
                f"job {self.job} has been saved up to step {self._found}, but the Trainer begins "
                f"at step {state.global_step}: call trainer.train(resume_from_checkpoint="
                f"callback.resume(trainer)), or choose another job")
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        entries = {"model": self._shared(kwargs["model"]), "optim": getattr(optimizer, "optimizer", optimizer),
                   "sched": scheduler, "trainer": self._position, **self._more}
        if getattr(optimizer, "scaler", None) is not None:
            entries["scaler"] = optimizer.scaler
        self._position.state = state
        self.checkpointer = Checkpointer(self.job, entries, run_id=self._run_id, **self._options)
        step = self.checkpointer.restore(timeout=self.timeout) - 1
        if step > 0:
            _logger.info("job %s continues after step %d", self.job, step)
            # Fetching the first data draws from the generators. They are set again later, at the point
            # of the training where the version was saved.
            self._random = random_state.capture()
        self._due = self._saved = state.global_step
        self._found = None
        self._remove_folder()
        # The Trainer skips the data that it has seen, and loads the first batch.
        self._enter(Phase.INIT)

    def _enter(self, phase: Phase | None) -> None:
        """Ends the current phase and begins another. None: training steps."""
        before, self._phase = self._phase, phase
        if phase is not None:
            phases.begin(phase)
        if before is not None:
            phases.end(before)

    def _shared(self, model: Any) -> Any:
        """The model in its DistributedDataParallel wrapper, if any, which shows what the ranks share."""
        wrapped = getattr(self._trainer, "model_wrapped", None)
        data_parallel = isinstance(wrapped, torch.nn.parallel.DistributedDataParallel)
        return wrapped if data_parallel and wrapped.module is model else model

    def _remove_folder(self) -> None:
        if self._trainer is not None:
            vars(self._trainer).pop("_load_from_checkpoint", None)
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def _set_generators(self, here: bool) -> None:
        if self._random is not None and here:
            random_state.restore(self._random)
            self._random = None

    # ---------------------------------------------------------------------------------- saving

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl,
                       **kwargs: Any) -> None:
        moment = self._position.restored.get("moment", "")
        self._enter(Phase.INIT)  # loads the first batch of the epoch
        self._set_generators(moment == "epoch"
                             or (moment == "end" and float(state.epoch or 0).is_integer()))
        self._save(state, control, "epoch")

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl,
                      **kwargs: Any) -> None:
        self._enter(None)
        self._set_generators(True)
        self._save(state, control, "step")

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl,
                    **kwargs: Any) -> None:
        if control.should_training_stop or state.global_step % self.every == 0:
            self._due = state.global_step
        if control.should_training_stop:
            # Saved now, since the Trainer may load its best model later.
            self._save(state, control, "end")
        self._enter(_next_phase(control))

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl,
                     **kwargs: Any) -> None:
        if control.should_training_stop:
            self._due = state.global_step
            self._save(state, control, "end")
        self._enter(_next_phase(control))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl,
                     **kwargs: Any) -> None:
        self._enter(None)
        if not args.load_best_model_at_end:
            self._due = state.global_step
            self._save(state, control, "end")
        if self.checkpointer is not None and self._saved > 0:
            try:
                self.checkpointer.wait(self._saved, Tier.MEMORY, self.timeout)
            except HoldfastError as error:
                _logger.error("the last step of the training, %d, is not saved: %s", self._saved,
                              error)
        self._close()

    def _save(self, state: TrainerState, control: TrainerControl, moment: str) -> None:
        if self.checkpointer is None or self._due <= self._saved:
            return
        self._saved = self._due
        self._position.state, self._position.moment = state, moment
        self._position.callbacks = dict(self._callbacks(state, control))
        self.checkpointer.save(state.global_step,
                               wait_for_slot=self.timeout if moment == "end" else 0)

    def _callbacks(self, state: TrainerState, control: TrainerControl) -> Iterator[tuple[str, Any]]:
        """The states of the Trainer's callbacks, in the form of the Trainer's checkpoints."""
        exportable = [control] if self._trainer is None \
            else [*self._trainer.callback_handler.callbacks, control]
        found: dict[str, list[Any]] = {}
        for callback in exportable:
            if isinstance(callback, ExportableState):
                found.setdefault(type(callback).__name__, []).append(callback.state())
        for name, states in found.items():
            yield name, states if len(states) > 1 else states[0]

    def guard(self) -> None:
        """Call this before you change parameters outside of the optimizer's step; see
        `Checkpointer.guard`."""
        if self.checkpointer is not None:
            self.checkpointer.guard()

    def _close(self) -> None:
        self._enter(None)
        checkpointer, self.checkpointer = self.checkpointer, None
        if checkpointer is not None:
            with contextlib.suppress(HoldfastError):  # each was logged when it happened
                checkpointer.close(self.timeout)


def _next_phase(control: TrainerControl) -> Phase | None:
    """The phase between this step and the next one, if any."""
    if control.should_evaluate:
        return Phase.EVALUATION
    return Phase.CHECKPOINT if control.should_save else None


def _read_no_weights_from(folder: str, trainer: Any) -> None:
    read = trainer._load_from_checkpoint

    def load(path: str, *arguments: Any, **named: Any) -> Any:
        return None if path == folder else read(path, *arguments, **named)
    trainer._load_from_checkpoint = load
