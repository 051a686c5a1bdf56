"""Measures one turn of a study in a process of its own: the speed or the losses of a configuration."""

import csv
from dataclasses import dataclass

from lightning.pytorch import seed_everything
from omegaconf import open_dict

from imagenet_opt.config.build import make, num_classes_of
from imagenet_opt.config.compose import composed
from imagenet_opt.doctor.environment.gpu import gpu_clocks
from imagenet_opt.doctor.environment.neighbours import Neighbours
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.fit_timer import FitTiming
from imagenet_opt.probe.growing_images import at_one_size
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span, fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.loggers.metrics_csv import FILE
from imagenet_opt.training.build_run import build_run
from imagenet_opt.training.quiet import quiet

STOPS = "callbacks.acceleration.on_failure=stop"
"""A row that does not compile fails instead of training uncompiled."""
_NUM_LOSSES = 20
"""Points of a loss curve."""
_SEED = 0
"""Chooses the files that turns read: all turns read the same files, so these are in memory after the first turn."""


@dataclass(frozen=True)
class SpeedJob:
    """seconds: of each timed stretch. cold: whether files are evicted from the page cache first. beside: overrides
    of the rows that take turns with this one; results with other neighbours are not reused."""

    overrides: tuple[str, ...]
    seconds: float
    cold: bool
    beside: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class TogetherJob(SpeedJob):
    """A turn for comparing all kept steps together; separate from the turns of the rows."""


@dataclass(frozen=True)
class LossJob:
    """steps: optimizer steps to train."""

    overrides: tuple[str, ...]
    steps: int


def speed(job: SpeedJob) -> dict[str, float | None]:
    """Measure images per second of the network alone and of the full run, with further facts.

    busy: share of the full run in which kernels ran; if kernels cannot be observed, in which the device had work; on a
    CPU, in which the process was inside a step. memory_gib: peak memory reserved on the GPU, or of this process.
    compile_seconds: includes the capture of a CUDA graph. step_seconds, kernel_seconds: per step of the network alone.
    steady: 0 if the full run was timed on prefetched batches only. others_percent: of the usable CPUs, used by other
    programs or taken by the host of a virtual machine, in the more disturbed of the two measurements. clocks_lowered:
    1 if heat, power or an administrator lowered the GPU's clocks.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    quiet()
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    testbed = Testbed(config, compared=True, seed=None if job.cold else _SEED)
    testbed.samples.warm(job.seconds)
    neighbours, stretches = Neighbours(), []
    with named_out_of_memory(testbed.config):
        neighbours.start()
        alone = testbed.compute(Span(job.seconds), beside=False)
        stretches.append(neighbours.stop())
        neighbours.start()
        full, full_rate = testbed.full_run(job.seconds, cold=job.cold)
        stretches.append(neighbours.stop())
    others_percent = max(stretch.others_cpu_percent + stretch.steal_percent for stretch in stretches)
    return _rates(testbed, alone, full, full_rate) | {"others_percent": others_percent}


def _rates(testbed: Testbed, alone: FitTiming, full: FitTiming, full_rate: float) -> dict[str, float | None]:
    """The result of `speed`, but others_percent."""
    compute, batch_size = fit_ceiling(alone).images_per_second, testbed.loading.batch_size
    state = alone.gpu_state
    return {
        "compute": compute,
        "full": full_rate,
        "busy": min(1.0, (alone.kernel_seconds or full.device_seconds) * full_rate / batch_size),
        "memory_gib": peak_gib(testbed.device),
        "compile_seconds": alone.compile_seconds,
        "step_seconds": batch_size / compute,
        "kernel_seconds": (alone.kernel_seconds or 0.0) if testbed.device.type == "cuda" else None,
        "batch_size": float(batch_size),
        "steady": float(full.steady),
        "clocks_lowered": float(state is not None and bool(gpu_clocks(state).fired)),
    }


def losses(job: LossJob) -> list[float]:
    """Train and return the mean loss of each twentieth of the steps.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    quiet()
    config = composed((*job.overrides, STOPS))
    at_one_size(config)
    with open_dict(config):  # for callbacks
        config.model.num_classes = num_classes_of(config.model.num_classes, make(config.data, "data"))
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
