"""One measurement of a configuration, the network alone and the full pipeline, in a process of its own."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything

from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.isolated import Hung, call_isolated, limit
from imagenet_opt.probe.memory import named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span, fit_ceiling
from imagenet_opt.probe.throwaway_run import removed_afterwards

STOPS = "callbacks.acceleration.on_failure=stop"
"""A configuration that does not compile fails instead of training uncompiled."""
SEED = 0
"""Chooses the files that turns read: all turns read the same files, so these are in memory after the first turn."""
_COMPILING_SECONDS = 1800.0
"""Time for compiling, added to the time limit of a process."""


@dataclass(frozen=True)
class Job:
    """overrides: of train.py. seconds: of each timed stretch. cold: whether files are evicted from the page cache."""

    overrides: tuple[str, ...]
    seconds: float
    cold: bool


@dataclass(frozen=True)
class Turn:
    """What one process measured.

    full, compute: images per second of the full pipeline and of the network alone. busy: share of the full run in which
    the device had work; on a CPU, in which the process was inside a step. memory_gib: peak of the full run, reserved on
    the GPU or of the process. compile_seconds: includes the capture of a CUDA graph, None without compilation. seconds:
    duration with the start of the process.
    """

    full: float
    compute: float
    busy: float
    memory_gib: float
    compile_seconds: float | None
    batch_size: int
    seconds: float = 0.0


def take_turn(job: Job, folder: Path) -> Turn:
    """Measure in a process of its own. folder: keeps the compiled code. Raises TurnFailed."""
    began = time.perf_counter()
    values: Any = apart(f"{__name__}.measured", job, folder, timed_seconds=2 * job.seconds)
    return Turn(**{**values, "seconds": time.perf_counter() - began})


def apart(function: str, job: object, folder: Path, *, timed_seconds: float) -> object:
    """Call a function that trains, in a process of its own whose run folders are removed afterwards. folder: keeps the
    compiled code. Raises TurnFailed."""
    with removed_afterwards() as runs:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str((folder / "compiled").resolve()), **runs}
        seconds = _COMPILING_SECONDS + limit(timed_seconds)
        try:
            return call_isolated(function, job, limit_seconds=seconds, environment=environment)
        except Hung as error:
            hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
            raise TurnFailed(f"{error}; {hint}") from error
        except ImagenetOptError as error:
            raise TurnFailed(str(error)) from error


def measured(job: Job) -> dict[str, Any]:
    """Measure the full pipeline, then the network alone, in the process of the turn; a Turn as plain values.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    config = composed((*job.overrides, STOPS))
    seed_everything(config.seed, verbose=False)
    testbed = Testbed(config, compared=True, seed=None if job.cold else SEED)
    batch_size = testbed.loading.batch_size
    with named_out_of_memory(testbed.config):
        run, full = testbed.full_run(job.seconds, cold=job.cold)
        memory_gib = peak_gib(testbed.device)
        testbed.samples.read_few()
        alone = testbed.compute(Span(job.seconds), beside=False)
    turn = Turn(
        full=full,
        compute=fit_ceiling(alone).images_per_second,
        busy=min(1.0, run.device_seconds * full / batch_size),
        memory_gib=memory_gib,
        compile_seconds=run.compile_seconds,
        batch_size=batch_size,
    )
    return asdict(turn)
