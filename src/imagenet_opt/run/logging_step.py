"""When Lightning writes a row of metrics, and how to add numbers from the host to the row."""

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule, Trainer


def is_logging_step(trainer: Trainer) -> bool:
    """Whether Lightning writes a row after the present batch; call in `training_step` or `on_train_batch_end`.

    Lightning's rule has no public name: every `log_every_n_steps` steps, and with accumulation only after the last
    batch of a step.
    """
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop._should_accumulate()


def log_host_numbers(module: LightningModule, numbers: Mapping[str, float]) -> None:
    """Add rank 0's numbers to the row that is logged at this step.

    The numbers are passed as CPU tensors: Lightning would copy a float to the device and wait to read it back.
    """
    tensors = {name: torch.tensor(number, dtype=torch.float32) for name, number in numbers.items()}
    module.log_dict(tensors, rank_zero_only=True)
