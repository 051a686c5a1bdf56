"""The position of a checkpoint in the run, written so that Lightning resumes at exactly that batch.

Lightning stores the counters of its loops as they are when a hook saves. The counters differ from hook to hook, and on
restart Lightning guesses from them which hook saved. This module sets the counters to their values between two
batches, where no step is half done.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging

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


def restore_loaders(trainer: Trainer) -> None:
    """Restore the states of loaders that Lightning has not restored, because it created the loaders before it restored
    its loops. A schedule that asks for the number of steps makes Lightning do so."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and loop._data_fetcher is not None:
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)


def skip_to_training(trainer: Trainer, *, inside_epoch: bool) -> None:
    """Keep Lightning from counting a step twice when a run resumes.

    After a batch that has a validation, Lightning enters the loop as if to validate, skips the validation, and adds 1
    to the step that loggers get. At the start of an epoch with max_steps, it would restart the previous epoch.
    """
    loop = trainer.fit_loop.epoch_loop
    if not inside_epoch:
        loop.restarting = False
    elif loop._should_check_val_fx(trainer.fit_loop._data_fetcher):  # type: ignore[arg-type]
        loop._batches_that_stepped -= 1


def validate_last_weights(trainer: Trainer) -> None:
    """Let a fit validate after its last step too, which may lie inside an epoch, or in an epoch without validation; and
    repeat an interrupted validation, whatever the options of the resumed run are. Lightning has no hook for this."""
    loop = trainer.fit_loop.epoch_loop
    loop._should_check_val_fx = partial(_is_validation_due, trainer, loop._should_check_val_fx)  # type: ignore[method-assign]


def _is_validation_due(trainer: Trainer, by_interval: Callable[[Any], bool], fetcher: Any) -> bool:
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    by_steps = 0 < trainer.max_steps <= trainer.global_step
    by_epochs = loop._num_ready_batches_reached() and 0 < (trainer.max_epochs or 0) <= trainer.current_epoch + 1
    is_last = by_steps or by_epochs or (trainer.should_stop and fit._can_stop_early)
    return by_interval(fetcher) or (trainer.enable_validation and (is_last or loop.val_loop.restarted_mid_evaluation))


def _all(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)


def watch_averaging(trainer: Trainer) -> None:
    """Record whether the module holds averaged weights, which WeightAveraging swaps in for validation.

    WeightAveraging swaps the weights in a private method and keeps no record, and a validation may be interrupted.
    """
    for callback in _averaging(trainer):
        if "is_swapped" not in vars(callback):
            callback.is_swapped = False
            callback._swap_models = partial(_swap_and_record, callback, callback._swap_models)


def restore_training_weights(trainer: Trainer) -> None:
    """Put the trained weights back into the module if it holds averaged weights."""
    for callback in _averaging(trainer):
        if callback.is_swapped:
            callback._swap_models(trainer.lightning_module)


def _averaging(trainer: Trainer) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, WeightAveraging)]  # type: ignore[attr-defined]


def _swap_and_record(callback: Any, swap: Callable[[LightningModule], None], module: LightningModule) -> None:
    swap(module)
    callback.is_swapped = not callback.is_swapped
