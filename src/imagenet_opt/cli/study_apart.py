"""Turns of a study of steps, each in a process of its own and measured once."""

import time
from functools import partial

from omegaconf import OmegaConf

from imagenet_opt.cli.apart import Hung, call_apart
from imagenet_opt.cli.composition import composed
from imagenet_opt.cli.doctor_run import removed_afterwards
from imagenet_opt.cli.kept import Kept
from imagenet_opt.cli.study_outcome import Speed
from imagenet_opt.cli.study_request import Request
from imagenet_opt.cli.study_turn import LossJob, SpeedJob
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.interleave import TurnFailed

_COMPILING_SECONDS = 3600.0
_ALLOWANCE = 10
"""A turn that takes so many times what is timed in it, and that time to compile on top, has hung."""


def speed_of(job: SpeedJob, number: int, request: Request, kept: Kept) -> Speed:
    """The `number`th turn; turn_seconds: that it took with its process's start. Raises TurnFailed."""

    def measure() -> Speed:
        began = time.perf_counter()
        found: Speed = apart("speed", job, request, timed_seconds=job.seconds)  # type: ignore[assignment]
        return found | {"turn_seconds": time.perf_counter() - began}

    found: Speed = kept.take(job, number, measure, config=plain(job.overrides))
    return found


def losses_of(job: LossJob, request: Request, kept: Kept, *, timed_seconds: float) -> list[float]:
    """Raises TurnFailed."""
    measure = partial(apart, "losses", job, request, timed_seconds=timed_seconds)
    found: list[float] = kept.take(job, 0, measure, config=plain(job.overrides))
    return found


def has_losses(job: LossJob, kept: Kept) -> bool:
    """Whether they were measured before."""

    def measure() -> None:
        raise LookupError

    try:
        kept.take(job, 0, measure, config=plain(job.overrides))
    except LookupError:
        return False
    return True


def apart(function: str, job: object, request: Request, *, timed_seconds: float) -> object:
    """What a function of study_turn gives in a process of its own. Raises TurnFailed."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str((request.folder / "compiled").resolve())}
    limit = _COMPILING_SECONDS + _ALLOWANCE * timed_seconds
    try:
        with removed_afterwards() as runs:
            own = {**cache, **runs}
            return call_apart(f"imagenet_opt.cli.study_turn.{function}", job, limit_seconds=limit, environment=own)
    except Hung as error:
        hint = "it hangs or compiles for too long: leave it out in a study of your own, study=FILE.yaml"
        raise TurnFailed(f"{error}; {hint}") from error
    except ImagenetOptError as error:
        raise TurnFailed(str(error)) from error


def plain(overrides: tuple[str, ...]) -> object:
    """The configuration as JSON has it."""
    return OmegaConf.to_container(composed(overrides))
