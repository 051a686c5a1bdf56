"""Logs how busy the GPU is during training."""

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.measure.telemetry.gpu import gpu_readings
from imagenet_opt.measure.telemetry.sampler import Readings
from imagenet_opt.run.utilization import Utilization


class GpuUtilization(Utilization):
    """Means of rank 0's GPU since the last logged row, sampled in the background every `interval_seconds`.

    | key | unit |
    |---|---|
    | `gpu/utilization_percent` | %, share of the time in which any kernel ran, however small |
    | `gpu/memory_used_gib` | GiB in use on the device, by all processes |
    | `gpu/power_watts` | W |

    Sampling begins after the first step, which may compile. Validation during the fit is included. A key that the GPU
    does not support is left out; without CUDA nothing is logged. A row without a reading since the last row has no
    value.
    """

    def __init__(self, *, interval_seconds: float = 1.0) -> None:
        super().__init__("gpu", interval_seconds=interval_seconds)

    def readings(self, trainer: Trainer) -> Readings | None:
        device = trainer.strategy.root_device
        if device.type != "cuda":
            rank_zero_info(f"training runs on {device.type}, so callbacks.gpu_utilization logs no gpu/* columns")
            return None
        return gpu_readings(device.index)
