"""Where in the run a checkpoint stands, written so that Lightning goes on at exactly that batch.

Lightning stores its loops' counters as they are at the moment of saving, which differ by the hook that saves, and
on restart guesses from them which hook that was. Here the counters are set to what they are between two batches,
the one place where nothing is half done.
"""

from typing import Any, NamedTuple

from lightning.pytorch import Trainer

_VALIDATION = "epoch_loop.val_loop.batch_progress"


class Position(NamedTuple):
    """`epoch` epochs are finished, and `step` batches of the next one."""

    epoch: int
    step: int


def position(trainer: Trainer) -> Position:
    """The place between the last batch that was trained on and the next one, whichever hook asks."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    step = batches.current.processed
    left = epochs.started == epochs.completed and step > 0  # the loop has counted the epoch that it stopped in
    epoch = epochs.completed - left
    at_end = step >= trainer.num_training_batches or (batches.is_last_batch and step == batches.current.ready)
    return Position(epoch + 1, 0) if at_end else Position(epoch, step)


def between_batches(trainer: Trainer) -> bool:
    """Whether no step is half done: hooks from the end of one to the start of the next, and validation."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(batches.started == batches.completed)


def rewrite_position(checkpoint: dict[str, Any], place: Position) -> None:
    """Set the loop counters of a Lightning checkpoint to `place`, where the trainer that saved it stands."""
    epoch, step = place
    begun = epoch + (step > 0)
    epochs = {"ready": begun, "started": begun, "processed": epoch, "completed": epoch}
    fit_loop = checkpoint["loops"]["fit_loop"]
    fit_loop["epoch_progress"] |= {"total": epochs, "current": dict(epochs)}
    batches = fit_loop["epoch_loop.batch_progress"]
    batches |= {
        "total": _all(batches["total"]["processed"]),
        "current": _all(step),
        "is_last_batch": False,
    }
    fit_loop[_VALIDATION] |= {"total": _all(0), "current": _all(0), "is_last_batch": False}
    checkpoint["epoch"] = epoch


def rewrite_to_validation(checkpoint: dict[str, Any]) -> None:
    """Let a Lightning checkpoint that is saved during a validation go on with that validation, from its first batch.

    The other counters rest meanwhile, and stand where Lightning expects them: after a batch, before its validation.
    """
    begun = {"ready": 1, "started": 1, "processed": 0, "completed": 0}  # Lightning's sign of one that was left
    checkpoint["loops"]["fit_loop"][_VALIDATION] |= {"total": begun, "current": _all(0), "is_last_batch": False}


def skip_to_training(trainer: Trainer) -> None:
    """Let Lightning restart inside an epoch, after a batch with a validation, and count no step twice.

    It enters the loop as if to validate, leaves that out, and adds a step to the number that loggers are given.
    """
    loop = trainer.fit_loop.epoch_loop
    if loop._should_check_val_fx(trainer.fit_loop._data_fetcher):  # type: ignore[arg-type]
        loop._batches_that_stepped -= 1


def _all(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)
