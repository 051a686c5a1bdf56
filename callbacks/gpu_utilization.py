"""Logs how busy the GPU and the CPUs are, and how much memory is used, during training."""

from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.measure.telemetry.recorder import Recorder, Totals, means
from imagenet_opt.run.hook_timer import recorder_of
from imagenet_opt.run.rows import is_logging_step, log_numbers


class GpuUtilization(Callback):
    """Means of rank 0's GPU and machine since the last logged row, sampled in the background: the GPU once a second,
    the machine five times a second.

    | key | unit |
    |---|---|
    | `gpu/utilization_percent` | %, share of the time in which any kernel ran, however small |
    | `gpu/memory_used_gib` | GiB in use on the device, by all processes |
    | `gpu/power_watts` | W |
    | `host/cpu_percent` | %, 0 to 100 of the CPUs that the process may use |
    | `host/memory_used_gib` | GiB of RAM in use on the machine, shared memory included |

    The first step, which may compile for minutes, is left out. Validation during the fit is included. A key that the
    GPU does not support is left out, and so are all keys of the GPU without CUDA. A row without a sample since the last
    row has no value. CPU time counts all work on these CPUs, including network and file system work of the kernel;
    under a cgroup quota or SLURM that grants fewer CPUs than the affinity, only the work of this process and its
    descendants.
    """

    keys: ClassVar = {
        "gpu_utilization_percent": "gpu/utilization_percent",
        "gpu_memory_used_gib": "gpu/memory_used_gib",
        "gpu_power_watts": "gpu/power_watts",
        "cpu_percent": "host/cpu_percent",
        "memory_used_gib": "host/memory_used_gib",
    }
    """Column of the recorder -> key of the metric."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._first: Totals | None = None
        self._last: Totals = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self._recorder, self._first = recorder_of(trainer), None
            if (device := trainer.strategy.root_device).type != "cuda":
                rank_zero_info(f"training runs on {device.type}, so callbacks.gpu_utilization logs no gpu/* columns")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._recorder is None:
            return
        totals = self._recorder.totals
        if self._first is None:
            self._first = self._last = totals
        if is_logging_step(trainer):
            log_numbers(trainer, self._means(self._last, totals))
            self._last = totals

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def summary(self) -> dict[str, float]:
        """Means over the fit after its first step, under the logged keys."""
        return {} if self._first is None else self._means(self._first, self._last)

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
            self._last, self._recorder = self._recorder.totals, None

    def _means(self, before: Totals, after: Totals) -> dict[str, float]:
        after = {column: after[column] for column in self.keys if column in after}
        return {self.keys[column]: mean for column, mean in means(before, after).items()}
