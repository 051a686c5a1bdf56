"""One turn of a study, in a process of its own: the speed or the losses of a configuration."""

import csv
from dataclasses import dataclass
from pathlib import Path

from imagenet_opt.errors import ConfigError

STOPS = "callbacks.acceleration.on_failure=stop"
"""A row that does not compile fails; it does not train uncompiled."""
_NUM_LOSSES = 20
_SEED = 0
"""Of the files that turns read: those that one turn has read are in memory for the next."""


@dataclass(frozen=True)
class SpeedJob:
    """seconds: of each timed stretch. cold: with files that are dropped from the page cache before.

    beside: overrides of what it takes turns with; beside others it is another turn, as rounds are of one session.
    """

    overrides: tuple[str, ...]
    seconds: float
    cold: bool
    beside: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class TogetherJob(SpeedJob):
    """A turn of what is worth keeping or of what that is compared with, which is no turn of the rows."""


@dataclass(frozen=True)
class LossJob:
    """steps: optimizer steps to train."""

    overrides: tuple[str, ...]
    steps: int


def speed(job: SpeedJob) -> dict[str, float | None]:
    """Images per second of the network alone and of the full run, and what they took.

    busy: share of the full run in which kernels ran, counted as in the network alone. Where no kernels were seen: in
    which the device had something to do, the gaps between its kernels included; on a CPU, in which this process was
    within a step. memory_gib: that torch held of the GPU at most, graphs' pools included, or this process of the RAM.
    compile_seconds: with the capture of a CUDA graph. step_seconds, kernel_seconds: of the network alone, from one step
    to the next. steady: 0 where the full run was timed on batches that were made before, and may be slower later.
    others_percent: of the usable CPUs, used by other programs or taken by the host of a virtual machine meanwhile.
    clocks_lowered: 1 where heat, power or an administrator lowered the GPU's clocks.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    from lightning.pytorch import seed_everything

    from imagenet_opt.config.compose import composed
    from imagenet_opt.doctor.environment.gpu import gpu_clocks
    from imagenet_opt.doctor.environment.neighbours import Neighbours
    from imagenet_opt.measure.telemetry.peak_memory import peak_gib
    from imagenet_opt.probe.memory import named_out_of_memory
    from imagenet_opt.probe.testbed import Testbed
    from imagenet_opt.probe.throughput import Span, fit_ceiling
    from imagenet_opt.training.quiet import quiet

    quiet()
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    testbed = Testbed(config, compared=True, seed=None if job.cold else _SEED)
    testbed.samples.warm(job.seconds)
    neighbours = Neighbours()
    neighbours.start()
    with named_out_of_memory(testbed.config):
        alone = testbed.compute(Span(job.seconds), beside=False)
        full, whole = testbed.full_run(job.seconds, cold=job.cold)
    occupancy, state = neighbours.stop(), alone.gpu_state
    compute = fit_ceiling(alone).images_per_second
    return {
        "compute": compute,
        "full": whole,
        "busy": min(1.0, (alone.kernel_seconds or full.device_seconds) * whole / testbed.how.batch_size),
        "memory_gib": peak_gib(testbed.device),
        "compile_seconds": alone.compile_seconds,
        "step_seconds": testbed.how.batch_size / compute,
        "kernel_seconds": (alone.kernel_seconds or 0.0) if testbed.device.type == "cuda" else None,
        "batch_size": float(testbed.how.batch_size),
        "steady": float(full.steady),
        "others_percent": occupancy.others_cpu_percent + occupancy.steal_percent,
        "clocks_lowered": float(state is not None and bool(gpu_clocks(state).fired)),
    }


def losses(job: LossJob) -> list[float]:
    """Mean training loss of each twentieth of the steps. Raises ImagenetOptError; OutOfMemory instead of halving."""
    from lightning.pytorch import seed_everything
    from omegaconf import open_dict

    from imagenet_opt.config.build import make, num_classes_of
    from imagenet_opt.config.compose import composed
    from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
    from imagenet_opt.probe.testbed import at_one_size
    from imagenet_opt.probe.throwaway_run import only, run_folder
    from imagenet_opt.run.loggers.metrics_csv import FILE
    from imagenet_opt.training.build_run import build_run
    from imagenet_opt.training.quiet import quiet

    quiet()
    config = composed((*job.overrides, STOPS))
    at_one_size(config)
    with open_dict(config):  # callbacks may ask for it
        config.model.num_classes = num_classes_of(config.model.num_classes, make(config.data, "data"))
    with run_folder(only(config, callbacks=("acceleration", "mixing"))) as config:
        with open_dict(config):
            config.logger = {
                "csv": {"_target_": "imagenet_opt.run.loggers.metrics_csv.MetricsCsv", "folder": config.run_folder}
            }
            config.trainer.update({"max_steps": job.steps, "max_epochs": -1})
            config.trainer.log_every_n_steps = max(1, job.steps // _NUM_LOSSES)
        seed_everything(config.seed, verbose=False)
        run = build_run(config)
        run.trainer.callbacks.append(NoHalving())  # type: ignore[attr-defined]
        with named_out_of_memory(config):
            run.trainer.fit(run.model, datamodule=run.data, weights_only=True)
        return _column(run.folder / FILE, "train/loss")


def _column(file: Path, name: str) -> list[float]:
    with file.open() as lines:
        losses = [float(row[name]) for row in csv.DictReader(lines) if row.get(name)]
    if not losses:
        raise ConfigError("no loss was logged; raise --parity")
    return losses
