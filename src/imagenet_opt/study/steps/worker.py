"""What the processes of a study measure: the network alone, the full pipeline, and losses."""

import csv
from dataclasses import dataclass
from typing import Literal

from lightning.pytorch import seed_everything
from omegaconf import open_dict

from imagenet_opt.config.build import at_one_size, device_of, make, num_classes_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.settled_acceleration import settle_acceleration
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span, fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.loggers.metrics_rows import FILE
from imagenet_opt.training.build_run import build_run
from imagenet_opt.training.quiet import quiet

STOPS = "callbacks.acceleration.on_failure=stop"
"""A row that does not compile fails instead of training uncompiled."""
_NUM_LOSSES = 20
"""Points of a loss curve."""
SEED = 0
"""Chooses the files that turns read: all turns read the same files, so these are in memory after the first turn."""


Function = Literal["alone", "full"]
"""Of this module: what a turn measures."""


@dataclass(frozen=True)
class RowJob:
    """A turn of one row.

    seconds: of the timed stretch. cold: whether files are evicted from the
    page cache first. beside: overrides of all steps of the study; results of a study with other steps are not reused.
    """

    function: Function
    overrides: tuple[str, ...]
    seconds: float
    cold: bool
    beside: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class TogetherJob(RowJob):
    """A turn for comparing all kept steps together; separate from the turns of the rows."""


@dataclass(frozen=True)
class LossJob:
    """steps: optimizer steps to train."""

    overrides: tuple[str, ...]
    steps: int


def alone(job: RowJob) -> dict[str, float | None]:
    """Measure the network alone: `compute`, images per second; step_seconds; kernel_seconds of a step, on a GPU.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    testbed = _testbed(job)
    testbed.samples.read_few()
    with named_out_of_memory(testbed.config):
        timing = testbed.compute(Span(job.seconds), beside=False)
    rate = fit_ceiling(timing).images_per_second
    seconds = testbed.loading.batch_size / rate
    return {"compute": rate, "step_seconds": seconds, "kernel_seconds": timing.kernel_seconds}


def full(job: RowJob) -> dict[str, float | None]:
    """Measure the full pipeline: `full`, images per second, and further facts.

    busy: share of the time in which the device had work; on a CPU, in which the process was inside a step. memory_gib:
    peak memory reserved on the GPU, or of this process. compile_seconds: includes the capture of a CUDA graph. steady:
    0 if the run was timed on prefetched batches, see `FitTiming`. Raises as `alone`.
    """
    testbed = _testbed(job)
    with named_out_of_memory(testbed.config):
        timing, rate = testbed.full_run(job.seconds, cold=job.cold)
    batch_size = float(testbed.loading.batch_size)
    return {
        "full": rate,
        "busy": min(1.0, timing.device_seconds * rate / batch_size),
        "memory_gib": peak_gib(testbed.device),
        "compile_seconds": timing.compile_seconds,
        "batch_size": batch_size,
        "steady": float(timing.steady),
    }


def _testbed(job: RowJob) -> Testbed:
    quiet()
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    return Testbed(config, compared=True, seed=None if job.cold else SEED)


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
