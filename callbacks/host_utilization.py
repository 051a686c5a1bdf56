"""Logs how busy the CPUs are and how much memory is used during training."""

from lightning.pytorch import Trainer

from imagenet_opt.measure.telemetry.host import host_readings
from imagenet_opt.measure.telemetry.sampler import Readings
from imagenet_opt.run.utilization import Utilization


class HostUtilization(Utilization):
    """Means of rank 0's machine since the last logged row, sampled in the background every `interval_seconds`.

    | key | unit |
    |---|---|
    | `host/cpu_percent` | %, 0 to 100 of the CPUs that the process may use |
    | `host/memory_used_gib` | GiB of RAM in use on the machine, shared memory included |

    Sampling begins after the first step, which may compile. Validation during the fit is included. A row without a
    reading since the last row has no value. Definition of busy:
    `imagenet_opt.measure.telemetry.host.host_readings`.
    """

    def __init__(self, *, interval_seconds: float = 1.0) -> None:
        super().__init__("host", interval_seconds=interval_seconds)

    def readings(self, trainer: Trainer) -> Readings:
        return host_readings()
