"""Logs how busy the CPUs are and how much memory is used during training."""

from time import monotonic

from lightning.pytorch import LightningModule, Trainer

from imagenet_opt.machine import usable_cpus
from imagenet_opt.measure.telemetry.host import busy_seconds_of_descendants, host_readings
from imagenet_opt.measure.telemetry.sampler import Readings
from imagenet_opt.run.utilization import Utilization


class HostUtilization(Utilization):
    """Means of rank 0's machine since the last logged row, sampled in the background every `interval_seconds`.

    | key | unit |
    |---|---|
    | `host/cpu_percent` | %, 0 to 100 of the CPUs that the process may use |
    | `host/memory_used_gib` | GiB of RAM in use on the machine, shared memory included |
    | `host/other_programs_percent` | the part of `host/cpu_percent` by other programs; in the summary of one process |

    Sampling begins after the first step, which may compile. Validation during the fit is included. A row without a
    reading since the last row has no value. Definition of busy:
    `imagenet_opt.measure.telemetry.host.host_readings`.
    """

    def __init__(self, *, interval_seconds: float = 1.0) -> None:
        super().__init__("host", interval_seconds=interval_seconds)
        self._own_percent: float | None = None

    def readings(self, trainer: Trainer) -> Readings:
        self._own_percent = None
        self._began = monotonic(), busy_seconds_of_descendants()
        return host_readings()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            began, busy_seconds = self._began
            seconds = (monotonic() - began) * usable_cpus()
            self._own_percent = 100 * (busy_seconds_of_descendants() - busy_seconds) / seconds

    def summary(self) -> dict[str, float]:
        means = super().summary()
        if self._own_percent is None or "host/cpu_percent" not in means:
            return means
        return means | {"host/other_programs_percent": max(0.0, means["host/cpu_percent"] - self._own_percent)}
