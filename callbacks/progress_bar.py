"""Shows the progress of training: a bar on a terminal, lines in a file."""

import logging
import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console
from rich.progress import ProgressColumn

from imagenet_opt.config.length import epochs_of
from imagenet_opt.display.printable import is_screen, styles
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.run.rows import rows_of

log = logging.getLogger(__name__)

_TRAINING = {
    "train/loss": ("loss", "{:.3f}"),
    "train/acc1": ("acc1", "{:.1%}"),
    "lr": ("lr", "{:.3g}"),
    "throughput/images_per_second": ("img/s", "{:.0f}"),
    "throughput/data_wait_fraction": ("data wait", "{:.0%}"),
}
_VALIDATION = {"val/loss": ("loss", "{:.3f}"), "val/acc1": ("acc1", "{:.1%}"), "val/acc5": ("acc5", "{:.1%}")}
_AFTER_VALUE = ("img/s", "GiB", "left", "s")
"""Names that follow their value in a line."""
_IN_BAR = ("loss", "acc1", "img/s", "data wait", "left")
_RATE = "throughput/it_per_second"
_WIDE = 110
"""Columns of a terminal that shows all parts of the bar in one line."""


class ProgressBar(RichProgressBar):
    """A line for each row of metrics (run/rows.py) and each validation, and a rich bar on a terminal.

        epoch 4/8  step 40/40  loss 0.966  acc1 84.2%  lr 0.048  399 img/s  data wait 1%  2.1 GiB  00:32 left
        epoch 4/8  val  loss 0.710  acc1 86.0%  acc5 99.1%  1.2 s

    Both lines are logged at level INFO. Where stderr is no terminal, both lines are also printed there. On a terminal
    the bar shows loss, acc1, images per second, data wait and the time left, and the validation line is printed above
    the bar. Log records of these lines have `shown = True`, so that a handler that writes to the console can drop them.

    Loss, accuracies, learning rate, images per second and data wait are logged by the module and other callbacks; a
    value that is not logged or not finite is left out. GiB: peak memory of this process; on a GPU, the memory that
    torch reserved there; on a CPU, resident in RAM. left: the time to the end of the fit, from
    `throughput/it_per_second`; validations are left out.

    Logs no metric.
    """

    def __init__(self, *, refresh_rate: int = 1) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=False, console_kwargs=styles(sys.stderr))
        self._plain = not is_screen(sys.stderr)
        self._shown: dict[str, str] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            rows_of(trainer)
        if self._plain:
            self.disable()

    def configure_columns(self, trainer: Trainer) -> list[ProgressColumn]:
        """On a narrow terminal, only the epoch and its steps stand beside the metrics, so that all fit into a line."""
        description, bar, steps, *times = super().configure_columns(trainer)
        is_wide = Console(**styles(sys.stderr)).width >= _WIDE
        return [description, bar, steps, *times] if is_wide else [description, steps]

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return {name: self._shown[name] for name in _IN_BAR if name in self._shown}

    def on_row(self, trainer: Trainer, batch: int, numbers: dict[str, float]) -> None:
        self._shown = _known(numbers, _TRAINING) | {"GiB": f"{peak_gib(trainer.strategy.root_device):.1f}"}
        if (left := seconds_left(trainer, numbers.get(_RATE, 0.0))) is not None:
            self._shown["left"] = str(timedelta(seconds=round(left))).removeprefix("0:")
        if trainer.is_global_zero:
            total = trainer.num_training_batches
            self._say(trainer, f"step {batch}{f'/{total}' if math.isfinite(total) else ''}", self._shown)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began = time.perf_counter()
        super().on_validation_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        shown = _known(trainer.callback_metrics, _VALIDATION)
        super().on_validation_end(trainer, pl_module)
        if trainer.sanity_checking:
            return
        if trainer.is_global_zero:
            seconds = time.perf_counter() - self._validation_began
            self._say(trainer, "val", shown | {"s": f"{seconds:.1f}"}, above_bar=True)

    def _say(self, trainer: Trainer, where: str, shown: dict[str, str], *, above_bar: bool = False) -> None:
        words = (f"{value} {name}" if name in _AFTER_VALUE else f"{name} {value}" for name, value in shown.items())
        line = "  ".join([f"epoch {_epoch(trainer)}", where, *words])
        log.info(line, extra={"shown": True})
        if self._plain:
            sys.stderr.write(f"{line}\n")  # print would write twice
            sys.stderr.flush()
        elif above_bar and self.progress is not None:
            self.progress.console.print(line, markup=False, highlight=False)

    def _get_train_description(self, current_epoch: int) -> str:
        """Replaces Lightning's description, which has no public name and counts from 0; as wide as that of
        validation."""
        return f"Epoch {_epoch(self.trainer)}".ljust(len(self.validation_description))


def _known(logged: Mapping[str, Any], shapes: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Name and value as text, if the value is logged and finite."""
    values = {key: float(logged[key]) for key in shapes if key in logged}
    return {shapes[key][0]: shapes[key][1].format(value) for key, value in values.items() if math.isfinite(value)}


def _epoch(trainer: Trainer) -> str:
    """Number of the epoch, counted from 1, and the number of epochs if known."""
    last = epochs_of(trainer)
    return f"{trainer.current_epoch + 1}{f'/{last}' if last else ''}"


def seconds_left(trainer: Trainer, batches_per_second: float) -> float | None:
    """Seconds to the end of the fit without its validations; None where the fit has no known end."""
    total = trainer.estimated_stepping_batches
    if not math.isfinite(total) or not batches_per_second > 0:
        return None
    return max(0, total - trainer.global_step) * trainer.accumulate_grad_batches / batches_per_second
