"""Learning-rate factors as pure functions of the step.

warmup_epochs: of the linear rise, at most half of the run. final_factor: at the last step, of the peak learning rate.
"""

import math
from collections.abc import Callable

from imagenet_opt.errors import ConfigError

Schedule = Callable[..., float]
"""(step, *, num_steps, steps_per_epoch) -> factor of the peak learning rate."""


def cosine(
    step: int,
    *,
    num_steps: int,
    steps_per_epoch: float,
    warmup_epochs: float = 5.0,
    final_factor: float = 0.0,
) -> float:
    """Linear warmup to 1, then half a cosine to `final_factor` (SGDR without restarts, arXiv 1608.03983)."""
    rising, progress = _progress(step, num_steps, warmup_epochs * steps_per_epoch)
    return rising * (final_factor + (1 - final_factor) * (1 + math.cos(math.pi * progress)) / 2)


def linear(
    step: int,
    *,
    num_steps: int,
    steps_per_epoch: float,
    warmup_epochs: float = 2.0,
    final_factor: float = 0.0,
) -> float:
    """Linear warmup to 1, then a straight line to `final_factor`."""
    rising, progress = _progress(step, num_steps, warmup_epochs * steps_per_epoch)
    return rising * (1 + (final_factor - 1) * progress)


def _progress(step: int, num_steps: int, warmup_steps: float) -> tuple[float, float]:
    """Warmup factor (never 0, at most 1) and the share of the decay that is done, at `step` of `num_steps`.

    Warmup takes at most half of the run, so that a short trial of a long recipe still decays.
    """
    if warmup_steps < 0:
        raise ConfigError("schedule.warmup_epochs must be at least 0")
    warmup = min(round(warmup_steps), num_steps // 2)
    if step < warmup:
        return (step + 1) / (warmup + 1), 0.0
    return 1.0, min(1.0, (step - warmup) / max(1, num_steps - warmup))
