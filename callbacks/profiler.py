"""Records a few steps in detail: the operations of the CPU and the GPU."""

import csv
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.measure.telemetry.torch_profile import timed_operations

log = logging.getLogger(__name__)

FOLDER = "profile"
_COLUMNS = ("operation", "kind", "calls_per_step", "ms_per_step", "percent")


class Profiler(Callback):
    """Records `num_steps` steps with torch.profiler, after `start_step` steps of this fit and one step in which the
    profiler warms up. Writes into the folder `profile` of `folder` (N: number of the first recorded step):

    | file | content |
    |---|---|
    | `step_N.json.gz` | a Chrome trace, for https://ui.perfetto.dev or chrome://tracing |
    | `step_N.csv` | the `num_operations` longest operations, with their kind (measure/telemetry/torch_profile.py) |

    `ms_per_step` is the time of kernels on a GPU, otherwise of the CPU. A step begins at the end of the step before,
    so the trace includes waits for data. Recorded steps are slower than others: compare operations within a trace, but
    do not measure speed with them. Logs nothing. With several processes, rank 0 is recorded. If a fit ends earlier,
    the steps so far are written. A full disk causes a warning, and training continues. torch allows only one profiler
    at a time.

    Lightning's PyTorchProfiler (2.6, torch 2.15) records a window of steps too, but prints a warning at each other
    step, and a fit that ends before the window ends with an AssertionError.

    Raises ConfigError.
    """

    def __init__(
        self, *, folder: str | Path, start_step: int = 10, num_steps: int = 3, num_operations: int = 30
    ) -> None:
        numbers = {"start_step": (start_step, 0), "num_steps": (num_steps, 1), "num_operations": (num_operations, 1)}
        for name, (value, minimum) in numbers.items():
            if value < minimum:
                raise ConfigError(f"callbacks.profiler.{name}={value} must be at least {minimum}")
        self.folder = Path(folder) / FOLDER
        self.start_step, self.num_steps, self.num_operations = start_step, num_steps, num_operations
        self._profile: torch.profiler.profile | None = None
        self._is_due = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_due = trainer.is_global_zero
        self._num_done = self._num_recorded = 0
        self._on_gpu = trainer.strategy.root_device.type == "cuda"

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._is_due and self._num_done >= self.start_step:
            self._is_due = False
            self._first = trainer.global_step + 2  # the profiler warms up during the next step
            kinds = torch.profiler.ProfilerActivity
            self._profile = torch.profiler.profile(
                activities=[kinds.CPU, *([kinds.CUDA] if self._on_gpu else [])],
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=self.num_steps, repeat=1),
                on_trace_ready=self._write,
            )
            self._profile.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._num_done += 1
        if self._profile is not None:
            self._num_recorded = self._num_done - self.start_step - 1
            self._profile.step()
            if self._num_recorded == self.num_steps:
                self._stop()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_due or (self._profile is not None and not self._num_recorded):
            rank_zero_info(
                f"profiler: nothing was recorded: the fit had {self._num_done} steps, and recording begins after "
                f"callbacks.profiler.start_step={self.start_step} and one step to warm up"
            )
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        """Stop recording; if anything was recorded, torch calls `_write`."""
        profile, self._profile, self._is_due = self._profile, None, False
        if profile is not None:
            profile.stop()

    def _write(self, profile: torch.profiler.profile) -> None:
        if not self._num_recorded:
            return
        trace, table = (self.folder / f"step_{self._first}.{suffix}" for suffix in ("json.gz", "csv"))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _complete(trace) as part:
                profile.export_chrome_trace(str(part))
            with _complete(table) as part:
                self._write_table(profile, part)
        except Exception as error:  # no failed profile may end a training
            log.warning("profiler: not written, training continues (%s)", printable(f"{type(error).__name__}: {error}"))
            return
        steps = "1 step" if self._num_recorded == 1 else f"{self._num_recorded} steps"
        rank_zero_info(f"profiler: {steps} from step {self._first} on, in {printable(f'{trace}')} and {table.name}")

    def _write_table(self, profile: torch.profiler.profile, file: Path) -> None:
        operations = timed_operations(profile, num_steps=self._num_recorded, on_gpu=self._on_gpu)
        total = sum(operation.seconds for operation in operations)
        with file.open("w", newline="") as lines:
            rows = csv.writer(lines)
            rows.writerow(_COLUMNS)
            for operation in operations[: self.num_operations]:
                numbers = operation.num_calls, 1000 * operation.seconds, 100 * operation.seconds / total
                rows.writerow([operation.name, operation.group, *(f"{number:.4g}" for number in numbers)])


@contextmanager
def _complete(file: Path) -> Iterator[Path]:
    """Write under a temporary name first, so that `file` is complete whenever it exists."""
    part = file.with_name(f"new_{file.name}")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
