"""What a person sees while it trains."""

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from imagenet_opt.run.logging_step import is_logging_step

_SHOWN = {
    "train/loss": ("loss", "{:.3f}"),
    "train/acc1": ("top-1", "{:.1%}"),
    "val/acc1": ("val top-1", "{:.1%}"),
    "throughput/images_per_second": ("img/s", "{:.0f}"),
    "throughput/data_wait_fraction": ("wait", "{:.0%}"),
}


class ProgressBar(RichProgressBar):
    """A rich bar with it/s, loss, images/s and data wait on a terminal; plain lines where the output goes to a file.

    Shows what other callbacks log; logs nothing itself.
    """

    def __init__(self, *, refresh_rate: int = 1) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=False)
        self._plain = not sys.stderr.isatty()
        self._found: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._plain:
            self.disable()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return self._found

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_logging_step(trainer):
            self._read(trainer)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._plain and trainer.is_global_zero and is_logging_step(trainer):
            self._say(trainer, f"step {batch_idx + 1}/{trainer.num_training_batches}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer)
        super().on_validation_end(trainer, pl_module)
        if self._plain and trainer.is_global_zero and not trainer.sanity_checking:
            self._say(trainer, "validated")

    def _read(self, trainer: Trainer) -> None:
        """Only when there is something new, as reading a metric waits for the GPU."""
        found = trainer.callback_metrics
        self._found = {name: shape.format(float(found[key])) for key, (name, shape) in _SHOWN.items() if key in found}

    def _say(self, trainer: Trainer, where: str) -> None:
        metrics = "  ".join(f"{name} {value}" for name, value in self._found.items())
        print(f"epoch {_epoch(trainer)} {where}  {metrics}", file=sys.stderr, flush=True)

    def _get_train_description(self, current_epoch: int) -> str:
        """Lightning's, which has no public name and counts from 0, is as wide as what validation says."""
        return f"Epoch {_epoch(self.trainer)}".ljust(len(self.validation_description))


def _epoch(trainer: Trainer) -> str:
    """Counted from 1, and of how many where that is known."""
    last = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else None
    return f"{trainer.current_epoch + 1}{f'/{last}' if last else ''}"
