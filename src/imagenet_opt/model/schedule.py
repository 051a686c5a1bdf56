"""Learning-rate factors as pure functions of the step.

warmup_epochs: length of the linear rise, at most half of the run. final_factor: the factor at the end of the run.
Raises ConfigError for a negative warmup.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from imagenet_opt.errors import ConfigError

Factor = Annotated[float, Field(ge=0)]
Schedule = Callable[..., float]
"""(step, *, num_steps, steps_per_epoch) -> factor of the peak learning rate."""
_TRIANGLE: list[list[float]] = [[0, 0], [0.1, 1], [1, 0]]


def cosine(
    step: int, *, num_steps: int, steps_per_epoch: float, warmup_epochs: float = 5.0, final_factor: Factor = 0.0
) -> float:
    """Linear warmup to 1, then half a cosine to `final_factor` (SGDR without restarts, arXiv 1608.03983)."""
    rising, progress = _progress(step, num_steps, warmup_epochs * steps_per_epoch)
    return rising * (final_factor + (1 - final_factor) * (1 + math.cos(math.pi * progress)) / 2)


def linear(
    step: int, *, num_steps: int, steps_per_epoch: float, warmup_epochs: float = 2.0, final_factor: Factor = 0.0
) -> float:
    """Linear warmup to 1, then a straight line to `final_factor`."""
    rising, progress = _progress(step, num_steps, warmup_epochs * steps_per_epoch)
    return rising * (1 + (final_factor - 1) * progress)


def cosine_by_epoch(
    step: int,
    *,
    num_steps: int,
    steps_per_epoch: float,
    warmup_epochs: int = 5,
    warmup_factor: Factor | None = None,
    final_factor: Factor = 0.0,
    overlap: bool = False,
) -> float:
    """The same factor in all steps of an epoch: linear warmup, then half a cosine to `final_factor`.

    warmup_factor: of the first epoch; the factor is 1 after `warmup_epochs` (torchvision, timm). None: 1 /
    warmup_epochs in the first epoch, 1 in the last epoch of the warmup (NVIDIA's DeepLearningExamples). overlap: the
    cosine begins with the run and not after the warmup, so the factor never reaches 1 (timm).
    """
    _check_warmup(warmup_epochs)
    epoch, num_epochs = int(step // steps_per_epoch), num_steps / steps_per_epoch
    warmup = min(warmup_epochs, int(num_epochs) // 2)
    if epoch < warmup:
        if warmup_factor is None:
            return (epoch + 1) / warmup
        return warmup_factor + (1 - warmup_factor) * epoch / warmup
    start = 0 if overlap else warmup
    progress = min(1.0, (epoch - start) / (num_epochs - start))
    return final_factor + (1 - final_factor) * (1 + math.cos(math.pi * progress)) / 2


def piecewise(
    step: int, *, num_steps: int, steps_per_epoch: float, points: Sequence[Sequence[float]] = _TRIANGLE
) -> float:
    """Straight lines between points (share of the run, factor), from share 0 to share 1.

    Source: the triangle of FFCV's ImageNet recipe is points=[[0, 1e-4], [2 / epochs, 1], [1, 0]].
    """
    shares = [share for share, _ in points]
    if len(points) < 2 or shares[0] != 0 or shares[-1] != 1 or shares != sorted(shares):
        raise ConfigError(
            f"schedule.points={points} must go from share 0 to share 1, such as [[0, 0], [0.1, 1], [1, 0]]"
        )
    return float(np.interp(step / max(1, num_steps), shares, [factor for _, factor in points]))


def multistep(
    step: int,
    *,
    num_steps: int,
    steps_per_epoch: float,
    milestones: Sequence[Annotated[float, Field(ge=0, le=1)]] = (0.33333, 0.66667),
    gamma: Factor = 0.1,
) -> float:
    """The factor is multiplied by `gamma` at each milestone, a share of the run that is rounded to whole epochs."""
    num_epochs = num_steps / steps_per_epoch
    epoch = int(step // steps_per_epoch)
    return float(gamma ** sum(epoch >= round(share * num_epochs) for share in milestones))


def _check_warmup(length: float) -> None:
    if length < 0:
        raise ConfigError("schedule.warmup_epochs must be at least 0")


def _progress(step: int, num_steps: int, warmup_steps: float) -> tuple[float, float]:
    """Warmup factor (above 0, at most 1) and the finished share of the decay, at `step` of `num_steps`.

    Warmup takes at most half of the run, so that a short trial of a long recipe still decays.
    """
    _check_warmup(warmup_steps)
    warmup = min(round(warmup_steps), num_steps // 2)
    if step < warmup:
        return (step + 1) / (warmup + 1), 0.0
    return 1.0, min(1.0, (step - warmup) / max(1, num_steps - warmup))
