"""A callback and a logger that slow down a run, as a user may have added them; cases name them with allow_targets."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.rehearsal import burn
from imagenet_opt.run.loggers.csv_logger import MetricsCsv


class HiddenSync(Callback):
    """Reads a value of each sample in each step, and computes a little with it. Without the wait for each value, the
    computation would cost nothing, because the GPU is busy meanwhile."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for label in batch.labels:
            burn(0.0015 + 0 * label.item())


class SlowLogger(MetricsCsv):
    """Takes `seconds` longer to write each row."""

    def __init__(self, *, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds

    def log_metrics(self, *args: Any, **options: Any) -> None:
        super().log_metrics(*args, **options)
        time.sleep(self.seconds)
