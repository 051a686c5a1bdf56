"""The length of a run: trainer.max_epochs or trainer.max_steps, whichever ends the run first."""

from math import ceil, isfinite
from typing import Any

from omegaconf import DictConfig

from imagenet_opt.errors import ConfigError

_OFF = "trainer.limit_val_batches=0 turns validation off"
_REMEDIES = {
    "max_epochs": "set a number above 0, or -1 for a run that trainer.max_steps ends",
    "max_steps": "set a number above 0, or -1 for a run that trainer.max_epochs ends",
    "limit_train_batches": "set a share of an epoch or a number of batches; imagenet-opt evaluate validates only",
    "limit_val_batches": "set a share, at most 1.0, or a number of batches",
    "check_val_every_n_epoch": f"set a number above 0; {_OFF}",
    "val_check_interval": f"set a share of an epoch, at most 1.0, or a number of steps; {_OFF}",
}


def check_limits(trainer: DictConfig) -> None:
    """Raise ConfigError for a limit out of range, such as 0: nothing would be trained, or Lightning divides by it."""
    for key, remedy in _REMEDIES.items():
        value, others = trainer.get(key), {"limit_val_batches": 0, "max_epochs": -1, "max_steps": -1}
        is_above = isinstance(value, float) and value > 1
        if value is not None and value != others.get(key) and (is_above or not value > 0):
            raise ConfigError(f"trainer.{key}={value} is out of range; {remedy}")


def num_epochs(max_epochs: int | None, max_steps: int, steps_per_epoch: float) -> int:
    """Epochs of a run, of which the last may be incomplete; 0 for a run without end. steps_per_epoch: infinite if
    unknown."""
    ends = [] if max_epochs in (None, -1) else [max_epochs]
    if max_steps != -1 and steps_per_epoch > 0 and isfinite(steps_per_epoch):
        ends.append(ceil(max_steps / steps_per_epoch))
    return min(filter(None, ends), default=0)


def epochs_of(trainer: Any) -> int:
    """Epochs of the fit of a Trainer, once its loader is made; 0 for a fit without end."""
    return num_epochs(trainer.max_epochs, trainer.max_steps, trainer.num_training_batches)


def settle_length(config: DictConfig, num_batches: int) -> int:
    """Set trainer.max_epochs to the number of epochs that the run has, since trainer.max_steps may end it earlier and
    schedules by epochs follow trainer.max_epochs. Returns the steps of an epoch; Lightning refuses 0.

    num_batches: of the training images.
    """
    from imagenet_opt.data.order import limited  # with numpy, which mistakes do not wait for

    trainer = config.trainer
    steps = int(limited(num_batches, trainer.limit_train_batches))
    trainer.max_epochs = num_epochs(trainer.max_epochs, int(trainer.max_steps), steps) or trainer.max_epochs
    return steps
