"""When Lightning writes a row of metrics, and how numbers of the host get into it."""

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule, Trainer


def is_logging_step(trainer: Trainer) -> bool:
    """Whether a row is written after the present batch, asked in `training_step` or `on_train_batch_end`.

    Lightning's own rule, for which it has no public name: every `log_every_n_steps` steps, and with accumulation
    only after the last batch of a step.
    """
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop._should_accumulate()


def log_host_numbers(module: LightningModule, numbers: Mapping[str, float]) -> None:
    """Add numbers of rank 0 to the row.

    They stay on the host: Lightning copies a float to the device, and waits for the device to read the float back.
    """
    tensors = {name: torch.tensor(number, dtype=torch.float32) for name, number in numbers.items()}
    module.log_dict(tensors, rank_zero_only=True)
