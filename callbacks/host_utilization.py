"""How busy the CPUs are and how full the memory is during training."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.telemetry.host import host_readings
from imagenet_opt.measure.telemetry.sampler import Sampler
from imagenet_opt.run.logging_step import is_logging_step, log_host_numbers


class HostUtilization(Callback):
    """Means of rank 0's machine since the last logged row, sampled in the background.

    | key | unit |
    |---|---|
    | `host/cpu_percent` | %, 0 to 100 of the CPUs that the process may use |
    | `host/memory_used_gib` | GiB of RAM in use on the whole machine, shared memory included |

    Validation during the fit is included. Where rows follow each other faster than readings, Lightning
    repeats the last value. What counts as busy: `imagenet_opt.measure.telemetry.host.host_readings`.
    """

    def __init__(self, *, interval_seconds: float = 1.0) -> None:
        self._sampler = Sampler("host", interval_seconds=interval_seconds)

    def summary(self) -> dict[str, float]:
        """Means over the whole fit, under the logged keys."""
        return self._sampler.means()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._sampler.start(host_readings())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_logging_step(trainer):
            log_host_numbers(pl_module, self._sampler.drain())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._sampler.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._sampler.stop()
