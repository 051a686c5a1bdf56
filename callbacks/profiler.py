"""Records a few steps in detail: the operations of the CPU and the GPU."""

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from imagenet_opt.errors import ConfigError, printable

log = logging.getLogger(__name__)

FOLDER = "profile"


class Profiler(Callback):
    """Records `num_steps` steps with torch.profiler, after `start_step` steps of this fit and one step in which the
    profiler warms up. Writes `step_N.json.gz` into the folder `profile` of `folder`: a Chrome trace, for
    https://ui.perfetto.dev or chrome://tracing (N: number of the first recorded step).

    A step begins at the end of the step before, so the trace includes waits for data. Recorded steps are slower than
    others: compare operations within a trace, but do not measure speed with them. Logs nothing. With several processes,
    rank 0 is recorded. If a fit ends earlier, the steps so far are written. A full disk causes a warning, and training
    continues. torch allows only one profiler at a time.

    Lightning's PyTorchProfiler (2.6, torch 2.15) records a window of steps too, but prints a warning at each other
    step, and a fit that ends before the window ends with an AssertionError.

    Raises ConfigError.
    """

    def __init__(self, *, folder: str | Path, start_step: int = 10, num_steps: int = 3) -> None:
        for name, value, minimum in (("start_step", start_step, 0), ("num_steps", num_steps, 1)):
            if value < minimum:
                raise ConfigError(f"callbacks.profiler.{name}={value} must be at least {minimum}")
        self.folder = Path(folder) / FOLDER
        self.start_step, self.num_steps = start_step, num_steps
        self._profile: torch.profiler.profile | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            kinds, on_gpu = torch.profiler.ProfilerActivity, trainer.strategy.root_device.type == "cuda"
            first = trainer.global_step + self.start_step + 2  # the profiler warms up during the step before
            window = {"skip_first": self.start_step, "warmup": 1, "active": self.num_steps}
            self._profile = torch.profiler.profile(
                activities=[kinds.CPU, *([kinds.CUDA] if on_gpu else [])],
                schedule=torch.profiler.schedule(wait=0, repeat=1, **window),
                on_trace_ready=partial(self._write, first),
            )
            self._profile.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._profile is not None:
            self._profile.step()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        """Stop the profiler; within the window, torch calls `_write`."""
        profile, self._profile = self._profile, None
        if profile is not None:
            if profile.step_num <= self.start_step + 1:
                rank_zero_info(
                    f"profiler: nothing was recorded: the fit had {profile.step_num} steps, and recording begins after "
                    f"callbacks.profiler.start_step={self.start_step} and one step to warm up"
                )
            profile.stop()

    def _write(self, first: int, profile: torch.profiler.profile) -> None:
        num = profile.step_num - self.start_step - 1
        if not num:  # the fit ends within the first recorded step
            return
        trace = self.folder / f"step_{first}.json.gz"
        part = trace.with_name(f"new_{trace.name}")  # so that the trace is complete whenever it exists
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(part))
            part.replace(trace)
        except Exception as error:  # no failed profile may end a training
            with suppress(OSError):
                part.unlink()
            log.warning("profiler: not written, training continues (%s)", printable(f"{type(error).__name__}: {error}"))
            return
        steps = "1 step" if num == 1 else f"{num} steps"
        rank_zero_info(f"profiler: {steps} from step {first} on, in {printable(str(trace))}")
