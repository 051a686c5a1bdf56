"""Where in the run a checkpoint stands, written so that Lightning goes on at exactly that batch.

Lightning stores its loops' counters as they are at the moment of saving, which differ by the hook that saves, and
on restart guesses from them which hook that was. Here the counters are set to what they are between two batches,
the one place where nothing is half done.
"""

from typing import Any, NamedTuple

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerStatus


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
    return Position(epoch + 1, 0) if at_end and not validation_due(trainer) else Position(epoch, step)


def validation_due(trainer: Trainer) -> bool:
    """Whether a validation was broken off, and comes as a whole before the next batch."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    batches: Any = loop.batch_progress
    done = batches.is_last_batch and batches.current.completed == batches.current.ready
    broken_off = trainer.state.status == TrainerStatus.INTERRUPTED and trainer.validating and not done
    return broken_off or (loop.restarting and loop.restarted_mid_evaluation)


def rewrite_position(checkpoint: dict[str, Any], place: Position, validation_due: bool = False) -> None:
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
    if validation_due:  # the counters from which Lightning infers that it was in the middle of one
        fit_loop["epoch_loop.val_loop.batch_progress"] |= {
            "total": {"ready": 1, "started": 1, "processed": 0, "completed": 0},
            "current": _all(0),
            "is_last_batch": False,
        }
    checkpoint["epoch"] = epoch


def _all(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)
