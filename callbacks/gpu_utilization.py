"""Logs how busy the GPU is during training."""

from typing import ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.run.utilization import Utilization


class GpuUtilization(Utilization):
    """Means of rank 0's GPU since the last logged row; read once a second.

    | key | unit |
    |---|---|
    | `gpu/utilization_percent` | %, share of the time in which any kernel ran, however small |
    | `gpu/memory_used_gib` | GiB in use on the device, by all processes |
    | `gpu/power_watts` | W |

    The first step, which may compile, is left out. Validation during the fit is included. A key that the GPU does not
    support is left out; without CUDA nothing is logged. A row without a sample since the last row has no value.
    """

    keys: ClassVar = {
        "gpu_utilization_percent": "gpu/utilization_percent",
        "gpu_memory_used_gib": "gpu/memory_used_gib",
        "gpu_power_watts": "gpu/power_watts",
    }

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        device = trainer.strategy.root_device
        if device.type == "cuda":
            super().setup(trainer, pl_module, stage)
        elif stage == "fit":
            rank_zero_info(f"training runs on {device.type}, so callbacks.gpu_utilization logs no gpu/* columns")
