"""Turns of a study of steps, each in a process of its own and measured once."""

import time
from functools import partial

from omegaconf import OmegaConf

from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import Hung, call_apart, limit
from imagenet_opt.probe.throwaway_run import removed_afterwards
from imagenet_opt.study.request import Request
from imagenet_opt.study.result_cache import Kept
from imagenet_opt.study.steps.outcome import Speed
from imagenet_opt.study.steps.worker import LossJob, SpeedJob

_COMPILING_SECONDS = 1800.0
"""What compiling may take of a turn, beside the limit of any call."""


def speed_of(job: SpeedJob, number: int, request: Request, kept: Kept) -> Speed:
    """The `number`th turn; turn_seconds: that it took with its process's start. Raises TurnFailed."""

    def measure() -> Speed:
        began = time.perf_counter()
        found: Speed = apart("speed", job, request, timed_seconds=job.seconds)  # type: ignore[assignment]
        return found | {"turn_seconds": time.perf_counter() - began}

    found: Speed = kept.take(job, number, measure, config=plain(job.overrides))
    return found


def num_missing(job: SpeedJob, repeats: int, kept: Kept) -> int:
    """How many of `repeats` turns were not measured before."""
    config = plain(job.overrides)
    return sum(not kept.has(job, number, config=config) for number in range(repeats))


def losses_of(job: LossJob, request: Request, kept: Kept, *, timed_seconds: float) -> list[float]:
    """Raises TurnFailed."""
    measure = partial(apart, "losses", job, request, timed_seconds=timed_seconds)
    found: list[float] = kept.take(job, 0, measure, config=plain(job.overrides))
    return found


def has_losses(job: LossJob, kept: Kept) -> bool:
    """Whether they were measured before."""
    return kept.has(job, 0, config=plain(job.overrides))


def apart(function: str, job: object, request: Request, *, timed_seconds: float) -> object:
    """What a function of study_turn gives in a process of its own. Raises TurnFailed."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str((request.folder / "compiled").resolve())}
    try:
        with removed_afterwards() as runs:
            own = {**cache, **runs}
            seconds = _COMPILING_SECONDS + limit(timed_seconds)
            return call_apart(
                f"imagenet_opt.study.steps.worker.{function}", job, limit_seconds=seconds, environment=own
            )
    except Hung as error:
        hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
        raise TurnFailed(f"{error}; {hint}") from error
    except ImagenetOptError as error:
        raise TurnFailed(str(error)) from error


def plain(overrides: tuple[str, ...]) -> object:
    """The configuration as JSON has it."""
    return OmegaConf.to_container(composed(overrides))
