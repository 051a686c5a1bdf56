"""What the processes of a study measure: the network alone, the full pipeline, and losses."""

import csv
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import Any

import torch
from lightning.pytorch import seed_everything
from omegaconf import open_dict

from imagenet_opt.config.build import at_one_size, make, num_classes_of
from imagenet_opt.config.compose import composed
from imagenet_opt.doctor.environment.gpu import gpu_clocks
from imagenet_opt.doctor.environment.neighbours import Neighbours, Occupancy
from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.measure.telemetry.gpu import read_gpu
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.alternation import Alternation, Turns
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.loggers.metrics_rows import FILE
from imagenet_opt.training.build_run import build_run
from imagenet_opt.training.quiet import quiet

STOPS = "callbacks.acceleration.on_failure=stop"
"""A row that does not compile fails instead of training uncompiled."""
MOST_OTHERS_PERCENT = 10.0
"""A measurement is repeated if other programs use more of the CPUs than the first quartile of all measurements plus
this number of percentage points."""
NUM_CYCLES, MOST_CYCLES = 6, 18
"""Cycles of the network alone that count, and that are measured at most because others disturbed some."""
_NUM_LOSSES = 20
"""Points of a loss curve."""
_SEED = 0
"""Chooses the files that turns read: all turns read the same files, so these are in memory after the first turn."""


@dataclass(frozen=True)
class AloneJob:
    """Measures the network alone: rows take turns in one process.

    rows: name and overrides of each. seconds: timed seconds of each row.
    """

    rows: tuple[tuple[str, tuple[str, ...]], ...]
    seconds: float


@dataclass(frozen=True)
class FullJob:
    """The full pipeline of one row. seconds: of the timed stretch. cold: whether files are evicted from the page cache
    first. beside: overrides of the rows that take turns with this one; results with other neighbours are not reused."""

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


def alone(job: AloneJob) -> dict[str, Any]:
    """Measure images per second of the network alone, in cycles with a short window of each row.

    Returns `rows`: for each row `compute` (images per second), `step_seconds` and, on a GPU, `kernel_seconds` of a
    step; `failures`, the reason by row; `num_cycles` that count, `num_discarded_cycles`; `others_percent`, the highest
    CPU use by other programs in a cycle that counts, 100 more if the GPU's clocks were lowered.
    """
    quiet()
    batch_sizes = {}

    def train(name: str, overrides: tuple[str, ...], turns: Turns) -> None:
        config = composed((*overrides, STOPS))
        seed_everything(config.seed, verbose=False)
        testbed = Testbed(config, compared=True, seed=_SEED)
        testbed.samples.read_few()
        batch_sizes[name] = testbed.loading.batch_size
        with named_out_of_memory(testbed.config):
            testbed.compute_in_turns(turns)

    loops = {name: partial(train, name, overrides) for name, overrides in job.rows}
    with Alternation(loops, window_seconds=job.seconds / NUM_CYCLES) as alternation:
        alternation.cycle()
        cycles, num_discarded = _calm_cycles(alternation)
        kernels = alternation.profile() if torch.cuda.is_available() else {}
    rows: dict[str, dict[str, float | None]] = {}
    for name in loops.keys() - alternation.failures.keys():
        compute = geometric_mean(cycle.rates[name] for cycle in cycles)
        times = {"step_seconds": batch_sizes[name] / compute, "kernel_seconds": kernels.get(name)}
        rows[name] = {"compute": compute, **times}
    failures = {name: first_line(error) for name, error in alternation.failures.items()}
    others_percent = max((cycle.others_percent for cycle in cycles), default=0.0)
    counts = {"num_cycles": len(cycles), "num_discarded_cycles": num_discarded}
    return {"rows": rows, "failures": failures, "others_percent": others_percent, **counts}


@dataclass(frozen=True)
class _Cycle:
    """rates: images per second by row. others_percent: see `full`; 100 more if something lowered the GPU's clocks."""

    rates: dict[str, float]
    others_percent: float


def _calm_cycles(alternation: Alternation) -> tuple[list[_Cycle], int]:
    """NUM_CYCLES cycles that others disturbed little, and the number of discarded cycles.

    Of MOST_CYCLES cycles that were all disturbed, the calmest count.
    """
    cycles, calm, neighbours = list[_Cycle](), list[_Cycle](), Neighbours()
    while len(calm) < NUM_CYCLES and len(cycles) < MOST_CYCLES:
        neighbours.start()
        rates = alternation.cycle()
        if not rates:
            return [], 0
        state = read_gpu(torch.cuda.current_device()) if torch.cuda.is_available() else None
        lowered = state is not None and bool(gpu_clocks(state).fired)
        cycles.append(_Cycle(rates, _others_percent(neighbours.stop()) + 100 * lowered))
        cycles.sort(key=lambda cycle: cycle.others_percent)
        most = cycles[len(cycles) // 4].others_percent + MOST_OTHERS_PERCENT
        calm = [cycle for cycle in cycles if cycle.others_percent <= most]
    return cycles[:NUM_CYCLES], len(cycles) - NUM_CYCLES


def full(job: FullJob) -> dict[str, float | None]:
    """Measure images per second of the full pipeline, with further facts.

    busy: share of the time in which the device had work; on a CPU, in which the process was inside a step. memory_gib:
    peak memory reserved on the GPU, or of this process. compile_seconds: includes the capture of a CUDA graph. steady:
    0 if the run was timed on prefetched batches only. others_percent: of the usable CPUs, used by other programs or
    taken by the host of a virtual machine during the timed steps. clocks_lowered: 1 if heat, power or an administrator
    lowered the GPU's clocks.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    quiet()
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    testbed = Testbed(config, compared=True, seed=None if job.cold else _SEED)
    testbed.samples.warm(job.seconds)
    with named_out_of_memory(testbed.config):
        timing, rate = testbed.full_run(job.seconds, cold=job.cold, observer=Neighbours())
    batch_size, state = testbed.loading.batch_size, timing.gpu_state
    return {
        "full": rate,
        "busy": min(1.0, timing.device_seconds * rate / batch_size),
        "memory_gib": peak_gib(testbed.device),
        "compile_seconds": timing.compile_seconds,
        "batch_size": float(batch_size),
        "steady": float(timing.steady),
        "others_percent": _others_percent(timing.observed),
        "clocks_lowered": float(state is not None and bool(gpu_clocks(state).fired)),
    }


def _others_percent(occupancy: Occupancy) -> float:
    return occupancy.others_cpu_percent + occupancy.steal_percent


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
