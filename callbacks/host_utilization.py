"""Logs how busy the CPUs are and how much memory is used during training."""

from time import monotonic
from typing import ClassVar

from lightning.pytorch import LightningModule, Trainer

from imagenet_opt.machine import usable_cpus
from imagenet_opt.measure.telemetry.proc_counters import busy_seconds_of_descendants
from imagenet_opt.run.utilization import Utilization


class HostUtilization(Utilization):
    """Means of rank 0's machine since the last logged row, sampled in the background five times a second.

    | key | unit |
    |---|---|
    | `host/cpu_percent` | %, 0 to 100 of the CPUs that the process may use |
    | `host/memory_used_gib` | GiB of RAM in use on the machine, shared memory included |
    | `host/other_programs_percent` | the part of `host/cpu_percent` by other programs; in the summary of one process |

    The first step, which may compile, is left out. Validation during the fit is included. A row without a sample since
    the last row has no value. CPU time counts all work on these CPUs, including network and file system work of the
    kernel; under a cgroup quota or SLURM that grants fewer CPUs than the affinity, only the work of this process and
    its descendants.
    """

    keys: ClassVar = {"cpu_percent": "host/cpu_percent", "memory_used_gib": "host/memory_used_gib"}

    def __init__(self) -> None:
        super().__init__()
        self._own_percent: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._own_percent = None
        self._began = monotonic(), busy_seconds_of_descendants()

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
