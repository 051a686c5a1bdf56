"""Stops a run whose monitored metric reached a threshold or no longer improves, for good."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from imagenet_opt.errors import ConfigError, did_you_mean
from imagenet_opt.run.numbers import mode_of


class EarlyStop(EarlyStopping):
    """Lightning's EarlyStopping; a run that has stopped stays finished, where Lightning would train one more epoch at
    each start. With another `stopping_threshold` or `patience`, the resumed run trains on.

    monitor: metric. mode: max or min, whether larger or smaller is better; None: smaller for a loss.
    stopping_threshold: value that ends the run; None: no value. patience: validations without progress before the run
    ends; None: any number. options: others of EarlyStopping. ConfigError for a metric that is not logged.

    Logs nothing.
    """

    def __init__(
        self,
        monitor: str = "val/acc1",
        *,
        mode: str | None = None,
        stopping_threshold: float | None = 0.759,
        patience: int | None = None,
        **options: Any,
    ) -> None:
        patience = 1_000_000 if patience is None else patience
        mode = mode or mode_of(monitor)
        super().__init__(monitor, mode=mode, stopping_threshold=stopping_threshold, patience=patience, **options)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"stopping_threshold": self.stopping_threshold}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        options = (self.stopping_threshold, self.patience)
        super().load_state_dict(state_dict)
        self.patience = options[1]  # not that of the checkpoint
        if (state_dict["stopping_threshold"], state_dict["patience"]) != options:
            self.stopping_reason = EarlyStoppingReason.NOT_STOPPED

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._named(trainer):
            super().on_train_epoch_end(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._named(trainer):
            super().on_validation_end(trainer, pl_module)

    @contextmanager
    def _named(self, trainer: Trainer) -> Iterator[None]:
        """Lightning's error for a metric that is not logged, as a ConfigError that names the key."""
        try:
            yield
        except RuntimeError as error:
            if (metrics := trainer.callback_metrics.keys()) >= {self.monitor}:
                raise
            hint = did_you_mean(self.monitor, metrics, f"known: {', '.join(sorted(metrics))}")
            raise ConfigError(f"callbacks.early_stop.monitor={self.monitor} is not logged; {hint}") from error

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop |= self.stopping_reason != EarlyStoppingReason.NOT_STOPPED
