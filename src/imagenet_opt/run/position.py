"""Where in the run a checkpoint stands, written so that Lightning goes on at exactly that batch.

Lightning stores its loops' counters as they are at the moment of saving, which differ by the hook that saves, and
on restart guesses from them which hook that was. Here the counters are set to what they are between two batches,
the one place where nothing is half done.
"""

from typing import Any, NamedTuple

from lightning.pytorch import Trainer


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
    checkpoint["epoch"] = epoch


def _all(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)
