"""Theory of the queue between a loader and a device.

One worker makes a batch in `load_seconds`, unless `num_ready` batches already wait. A step takes one batch and computes
for `compute_seconds`. All `num_ready` batches exist before the first step. num_ready=0 means no worker: the training
process loads each batch itself, after the step before.
"""

import math
from collections.abc import Sequence


def hidden_steps(load_seconds: float, compute_seconds: float, num_ready: float) -> float:
    """Steps up to this number, counted from 0, find their batch ready; inf if the loader is fast enough.

    Step n needs its batch at n * compute_seconds, and the batch is ready at (n - num_ready + 1) * load_seconds. A
    partly made batch counts as that part of a batch.
    """
    if load_seconds <= compute_seconds:
        return math.inf
    return max(0, num_ready - 1) / (1 - compute_seconds / load_seconds)


def mean_step_seconds(load_seconds: float, compute_seconds: float, num_ready: float, num_steps: int) -> float:
    """Mean duration of the first `num_steps` steps; approaches the larger of the two times."""
    if num_ready == 0:
        return load_seconds + compute_seconds
    return max(compute_seconds, ((num_steps - num_ready) * load_seconds + compute_seconds) / num_steps)


def simulated_waits(
    load_seconds: Sequence[float], compute_seconds: float, num_ready: int, *, unfinished_seconds: float = 0.0
) -> list[float]:
    """Seconds that each step waits for its batch.

    load_seconds: of each batch, including the batches ready at first. unfinished_seconds: remaining time of the last
    batch that is ready at first.
    """
    starts: list[float] = []
    waits: list[float] = []
    free = made = 0.0  # when the device can begin the next step; when the last batch was made
    for step, seconds in enumerate(load_seconds):
        if num_ready == 0:
            made = free + seconds
        elif step == num_ready - 1:
            made = unfinished_seconds
        elif step >= num_ready:
            made = max(made, starts[step - num_ready]) + seconds
        starts.append(max(free, made))
        waits.append(starts[-1] - free)
        free = starts[-1] + compute_seconds
    return waits


def first_wait(waits: Sequence[float], least: float) -> int | None:
    """Number of steps before the first wait of more than `least` seconds; None without such a wait."""
    return next((step for step, seconds in enumerate(waits) if seconds > least), None)


def idle_share(waits: Sequence[float], compute_seconds: float) -> float:
    """Idle share of the device's time, 0 to 1."""
    return sum(waits) / (sum(waits) + compute_seconds * len(waits))
