"""How busy the GPU is while it trains."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.measure.telemetry.gpu import gpu_readings
from imagenet_opt.measure.telemetry.sampler import Sampler
from imagenet_opt.run.logging_step import is_logging_step, log_host_numbers


class GpuUtilization(Callback):
    """Means of rank 0's GPU since the last logged row, sampled in the background.

    | key | unit |
    |---|---|
    | `gpu/utilization_percent` | %, share of the time in which any kernel ran, however small |
    | `gpu/memory_used_gib` | GiB in use on the device, by every process |
    | `gpu/power_watts` | W |

    Validation during the fit is included. A key that the GPU does not support is left out; without CUDA
    nothing is logged. Where rows follow each other faster than readings, Lightning repeats the last value.
    """

    def __init__(self, *, interval_seconds: float = 1.0) -> None:
        self._sampler = Sampler("gpu", interval_seconds=interval_seconds)

    def summary(self) -> dict[str, float]:
        """Means over the whole fit, under the logged keys."""
        return self._sampler.means()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        device = trainer.strategy.root_device
        if device.type != "cuda":
            rank_zero_info(f"gpu_utilization: training runs on {device.type}, not on CUDA; nothing is logged.")
        elif trainer.is_global_zero:
            self._sampler.start(gpu_readings(device.index))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_logging_step(trainer):
            log_host_numbers(pl_module, self._sampler.drain())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._sampler.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._sampler.stop()
