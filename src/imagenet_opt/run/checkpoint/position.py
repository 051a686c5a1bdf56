"""The position of a checkpoint in the run, written so that Lightning resumes at exactly that batch.

Lightning stores the counters of its loops as they are when a hook saves. The counters differ from hook to hook, and on
restart Lightning guesses from them which hook saved. This module sets the counters to their values between two
batches, where no step is half done.
"""

from functools import partial
from typing import Any, NamedTuple

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging

from imagenet_opt import private_api
from imagenet_opt.run.hooks import callbacks_of

_VALIDATION = "epoch_loop.val_loop.batch_progress"


class Position(NamedTuple):
    """`epoch` epochs are finished, and `step` batches of the next epoch."""

    epoch: int
    step: int


def position(trainer: Trainer) -> Position:
    """The position between the last trained batch and the next batch, the same in every hook."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    step = batches.current.processed
    stopped_inside = epochs.started == epochs.completed and step > 0  # the loop has counted this epoch as completed
    epoch = epochs.completed - stopped_inside
    at_end = step >= trainer.num_training_batches or (batches.is_last_batch and step == batches.current.ready)
    return Position(epoch + 1, 0) if at_end else Position(epoch, step)


def between_batches(trainer: Trainer) -> bool:
    """Whether no training step is half done: true between two steps and in a validation."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(batches.started == batches.completed)


def ends_epoch(trainer: Trainer) -> bool:
    """Whether the present batch is the last of its epoch."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    return bool(batches.current.ready == trainer.num_training_batches or batches.is_last_batch)


def rewrite_position(checkpoint: dict[str, Any], place: Position) -> None:
    """Set the loop counters of a Lightning checkpoint to `place`, the position of the trainer that saved it. The states
    of loaders lose a batch that was delivered and not trained."""
    epoch, step = place
    started = epoch + (step > 0)
    epochs = {"ready": started, "started": started, "processed": epoch, "completed": epoch}
    fit_loop = checkpoint["loops"]["fit_loop"]
    fit_loop["epoch_progress"] |= {"total": epochs, "current": dict(epochs)}
    batches = fit_loop["epoch_loop.batch_progress"]
    untrained = batches["current"]["ready"] - batches["current"]["processed"]
    for loader in fit_loop["state_dict"].get("combined_loader", []):
        if loader.keys() >= {"epoch", "step"}:
            loader["step"] -= untrained
    batches |= {"total": _all(batches["total"]["processed"]), "current": _all(step), "is_last_batch": False}
    fit_loop[_VALIDATION] |= {"total": _all(0), "current": _all(0), "is_last_batch": False}
    checkpoint["epoch"] = epoch


def rewrite_to_validation(checkpoint: dict[str, Any]) -> None:
    """Let a run that resumes from a checkpoint of a validation repeat this validation from its first batch.

    No other counter changes during a validation: they stand where Lightning expects them, after a batch and before
    the validation.
    """
    interrupted = {"ready": 1, "started": 1, "processed": 0, "completed": 0}  # Lightning's mark of such a validation
    checkpoint["loops"]["fit_loop"][_VALIDATION] |= {"total": interrupted, "current": _all(0), "is_last_batch": False}


def skip_to_training(trainer: Trainer, *, inside_epoch: bool) -> None:
    """Keep Lightning from counting a step twice when a run resumes.

    After a batch that has a validation, Lightning enters the loop as if to validate, skips the validation, and adds 1
    to the step that loggers get. At the start of an epoch with max_steps, it would restart the previous epoch.
    """
    if not inside_epoch:
        trainer.fit_loop.epoch_loop.restarting = False
    elif private_api.is_validation_due(trainer):
        private_api.go_back_one_logged_step(trainer)


def validate_last_weights(trainer: Trainer) -> None:
    """Let a fit validate after its last step too, which may lie inside an epoch, or in an epoch without validation; and
    repeat an interrupted validation, whatever the options of the resumed run are."""
    private_api.add_validations(trainer, partial(_is_validation_due, trainer))


def _is_validation_due(trainer: Trainer) -> bool:
    by_steps = 0 < trainer.max_steps <= trainer.global_step
    by_epochs = ends_epoch(trainer) and 0 < (trainer.max_epochs or 0) <= trainer.current_epoch + 1
    is_last = by_steps or by_epochs or (trainer.should_stop and private_api.may_stop_early(trainer))
    is_interrupted = trainer.fit_loop.epoch_loop.val_loop.restarted_mid_evaluation
    return trainer.enable_validation and (is_last or is_interrupted)


def _all(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)


def watch_averaging(trainer: Trainer) -> None:
    """Record whether the module holds averaged weights, which WeightAveraging swaps in for validation.

    WeightAveraging swaps the weights in a private method and keeps no record, and a validation may be interrupted.
    """
    for callback in _averaging(trainer):
        if "is_swapped" not in vars(callback):
            callback.is_swapped = False
            private_api.after_swaps(callback, partial(_note_swap, callback))


def restore_training_weights(trainer: Trainer) -> None:
    """Put the trained weights back into the module if it holds averaged weights."""
    for callback in _averaging(trainer):
        if callback.is_swapped:
            private_api.swap_averaged(callback, trainer.lightning_module)


def _averaging(trainer: Trainer) -> list[Any]:
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, WeightAveraging)]


def _note_swap(callback: Any) -> None:
    callback.is_swapped = not callback.is_swapped
