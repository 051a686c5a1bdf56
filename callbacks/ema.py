"""An exponential moving average of the weights, kept on the training device."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn

from imagenet_opt import private_api
from imagenet_opt.errors import ConfigError


class Ema(WeightAveraging):
    """Averages weights and batch-norm statistics; validation and checkpoints use the average.

    After a step: average = decay * average + (1 - decay) * weights. Integer buffers are copied. The decay rises to its
    value, as in TensorFlow's `ExponentialMovingAverage`: the n-th update, counted from 0, has min(decay, n / (9 + n)).
    So the first update copies the weights, and the average of a short run is that of its last steps. A decay of 0.9998
    is reached after 45,000 updates, and 0.99 after 900.

    Lightning's `EMAWeightAveraging` creates the average before the strategy has moved the module, so it averages on the
    CPU and copies every weight to the host in each step. Here the average lies on the training device, and an update
    launches one kernel per list of tensors without waiting for the device.

    decay: of one update after the rise, at least 0 and below 1; weights count half after log(0.5) / log(decay) updates.
    update_every_n_steps: steps between two updates.
    Raises ConfigError for values out of range.

    Logs nothing.
    """

    def __init__(self, *, decay: float = 0.9998, update_every_n_steps: int = 1) -> None:
        super().__init__()
        if update_every_n_steps < 1:
            raise ConfigError(f"callbacks.ema.update_every_n_steps={update_every_n_steps} must be at least 1")
        if not 0 <= decay < 1:
            raise ConfigError(f"callbacks.ema.decay={decay} must be at least 0 and below 1")
        self.decay = decay
        self.update_every_n_steps = update_every_n_steps
        self._trained: list[Tensor] = []

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx % self.update_every_n_steps == 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the average to the device, after a checkpoint was loaded. The counter of updates stays on the host."""
        self._averaged = private_api.averaged_model(self)
        average = self._averaged.module.to(trainer.strategy.root_device)
        self._num_updates = int(self._averaged.n_averaged)
        self._averages, self._weights = _by_kind(average), _by_kind(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step > self._latest_update_step and self.should_update(step_idx=trainer.global_step - 1):
            self._update()
            self._latest_update_step = trainer.global_step

    def _swap_models(self, pl_module: LightningModule) -> None:
        """Exchange weights and average. Lightning would round the average to the weights' type, perhaps bfloat16."""
        averages, weights = ([*floats, *integers] for floats, integers in (self._averages, self._weights))
        trained, self._trained = self._trained, [] if self._trained else [weight.clone() for weight in weights]
        private_api.copy_all(weights, trained or averages)

    def _update(self) -> None:
        (floats, integers), (new_floats, new_integers) = self._averages, self._weights
        decay = min(self.decay, self._num_updates / (9 + self._num_updates))
        new_floats = [new.to(old.dtype) for new, old in zip(new_floats, floats, strict=True)]  # bfloat16 to float32
        private_api.blend_all(floats, new_floats, 1 - decay)
        if integers:
            private_api.copy_all(integers, new_integers)
        self._averaged.n_averaged += 1
        self._num_updates += 1


def _by_kind(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Floating-point tensors of the module, and the other tensors."""
    tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    return [t for t in tensors if t.is_floating_point()], [t for t in tensors if not t.is_floating_point()]
