"""Logs the learning rate."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.run.rows import is_logging_step, log_numbers


class LearningRate(Callback):
    """Logs the learning rate that the step used, at every logging step, in the row of the other metrics.

    Lightning's LearningRateMonitor writes a separate row, with a key for each parameter group (lr/pg1, lr/pg2).

    | key | unit |
    |---|---|
    | `lr` | of the first optimizer's first parameter group; with `optimizer.layer_decay` that of the head |
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._lr = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if is_logging_step(trainer):
            log_numbers(trainer, {"lr": self._lr})
