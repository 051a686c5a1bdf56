"""What the processes of a study measure: the network alone, the full pipeline, and losses."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import seed_everything
from omegaconf import open_dict

from imagenet_opt.config.build import at_one_size, device_of, make, num_classes_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.settled_acceleration import settle_acceleration
from imagenet_opt.doctor.environment.gpu import gpu_clocks
from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.measure.telemetry.gpu import GpuState, read_gpu
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.alternation import Alternation, Turns
from imagenet_opt.probe.fit.fit_timer import Pauses, Window
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.loggers.metrics_rows import FILE
from imagenet_opt.study.steps.calm import NUM_CYCLES
from imagenet_opt.training.build_run import build_run
from imagenet_opt.training.quiet import quiet

STOPS = "callbacks.acceleration.on_failure=stop"
"""A row that does not compile fails instead of training uncompiled."""
_NUM_LOSSES = 20
"""Points of a loss curve."""
SEED = 0
"""Chooses the files that turns read: all turns read the same files, so these are in memory after the first turn."""


@dataclass(frozen=True)
class AloneJob:
    """Measures the network alone: rows take turns in one process.

    rows: name and overrides of each. seconds: timed seconds of each row. on_gpu: whether the rows train on a GPU.
    """

    rows: tuple[tuple[str, tuple[str, ...]], ...]
    seconds: float
    on_gpu: bool


@dataclass(frozen=True)
class FullJob:
    """The full pipeline of one row. seconds: of the timed stretch. cold: whether files are evicted from the page cache
    first. beside: overrides of all steps of the study; results of a study with other steps are not reused."""

    overrides: tuple[str, ...]
    seconds: float
    cold: bool
    beside: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class TogetherJob(FullJob):
    """A turn for comparing all kept steps together; separate from the turns of the rows."""


@dataclass(frozen=True)
class LossJob:
    """steps: optimizer steps to train."""

    overrides: tuple[str, ...]
    steps: int


Pause = Callable[[dict[str, Any]], bool]
"""Ends a turn of the process with a report; returns whether to go on. See `probe.isolated.in_turns`."""


def alone(job: AloneJob, pause: Pause) -> dict[str, Any]:
    """Measure images per second of the network alone. A turn is a cycle with a short window of each row.

    A report has `windows`, images and seconds by row, None for the first cycle, which only warms up; and
    `clocks_lowered`, whether something lowered the GPU's clocks. Returns `failures`, the reason by row, and by row
    `batch_size` and, on a GPU, `kernel_seconds` of a step.
    """
    quiet()
    batch_sizes = {}

    def train(name: str, overrides: tuple[str, ...], turns: Turns) -> None:
        config = composed((*overrides, STOPS))
        seed_everything(config.seed, verbose=False)
        testbed = Testbed(config, compared=True, seed=SEED)
        testbed.samples.read_few()
        batch_sizes[name] = testbed.loading.batch_size
        with named_out_of_memory(testbed.config):
            testbed.compute_in_turns(turns)

    loops = {name: partial(train, name, overrides) for name, overrides in job.rows}
    with Alternation(loops, window_seconds=job.seconds / NUM_CYCLES, on_gpu=job.on_gpu) as alternation:
        alternation.warm_up()
        goes_on = pause({"windows": None})
        while goes_on and (windows := alternation.cycle()):
            state = read_gpu(torch.cuda.current_device()) if job.on_gpu else None
            goes_on = pause({"windows": windows, "clocks_lowered": _are_lowered(state)})
        kernels = alternation.profile() if job.on_gpu else {}
    failures = {name: first_line(error) for name, error in alternation.failures.items()}
    return {"failures": failures, "batch_sizes": batch_sizes, "kernels": kernels}


def full(job: FullJob, pause: Pause) -> dict[str, float | None]:
    """Measure images per second of the full pipeline. A turn is a short window.

    A report has `window`, its images and seconds; `is_enough`, whether the windows give a rate; and `clocks_lowered`,
    whether heat, power or an administrator lowered the GPU's clocks. If the measurement begins now, `window` is None,
    `batches_per_round` says how many batches arrive together, and `lacks_memory` whether memory limits the loader.

    Returns further facts. device_seconds: of a step in which the device had work; on a CPU, in which the process was
    inside a step. memory_gib: peak memory reserved on the GPU, or of this process. compile_seconds: includes the
    capture of a CUDA graph. steady: 0 if the run was timed on prefetched batches, see `FitTiming`.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    quiet()
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    testbed = Testbed(config, compared=True, seed=None if job.cold else SEED)

    def rest(window: Window | None) -> bool:
        if window is None:
            per_round, lacks = testbed.batches_per_round, testbed.lacks_memory
            return pause({"window": None, "batches_per_round": per_round, "lacks_memory": lacks})
        timed = (window.num_images, window.seconds)
        lowered = _are_lowered(window.gpu_state)
        return pause({"window": timed, "is_enough": window.is_enough, "clocks_lowered": lowered})

    pauses = Pauses(job.seconds / NUM_CYCLES, rest)
    with named_out_of_memory(testbed.config):
        timing = testbed.full_timing(job.seconds, cold=job.cold, pauses=pauses)
    return {
        "device_seconds": timing.device_seconds,
        "memory_gib": peak_gib(testbed.device),
        "compile_seconds": timing.compile_seconds,
        "batch_size": float(testbed.loading.batch_size),
        "steady": float(timing.steady),
    }


def _are_lowered(state: GpuState | None) -> bool:
    return state is not None and bool(gpu_clocks(state).fired)


def losses(job: LossJob) -> list[float]:
    """Train and return the mean loss of each twentieth of the steps.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    quiet()
    config = composed((*job.overrides, STOPS))
    at_one_size(config)
    with open_dict(config):  # for callbacks
        config.model.num_classes = num_classes_of(config.model.num_classes, data := make(config.data, "data"))
    settle_acceleration(config, len(data.train), device_of(config))
    with run_folder(only(config, callbacks=("acceleration", "mixing"))) as config:
        with open_dict(config):
            target = "imagenet_opt.run.loggers.metrics_csv.MetricsCsv"
            config.logger = {"csv": {"_target_": target, "folder": config.run_folder}}
            config.trainer.update({"max_steps": job.steps, "max_epochs": -1})
            config.trainer.log_every_n_steps = max(1, job.steps // _NUM_LOSSES)
        seed_everything(config.seed, verbose=False)
        run = build_run(config)
        run.trainer.callbacks.append(NoHalving())  # type: ignore[attr-defined]
        with named_out_of_memory(config):
            run.trainer.fit(run.model, datamodule=run.data, weights_only=True)
        with (run.folder / FILE).open() as lines:
            losses = [float(row["train/loss"]) for row in csv.DictReader(lines) if row.get("train/loss")]
    if not losses:
        raise ConfigError("no loss was logged; raise --parity")
    return losses
