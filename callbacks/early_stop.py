"""Stops a run whose monitored metric reached a threshold or no longer improves, for good."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason


class EarlyStop(EarlyStopping):
    """Lightning's EarlyStopping; a run that has stopped stays finished, where Lightning would train one more epoch at
    each start. With another `stopping_threshold`, the resumed run trains on.

    Logs nothing.
    """

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"stopping_threshold": self.stopping_threshold}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if state_dict["stopping_threshold"] != self.stopping_threshold:
            self.stopping_reason = EarlyStoppingReason.NOT_STOPPED

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop |= self.stopping_reason != EarlyStoppingReason.NOT_STOPPED
