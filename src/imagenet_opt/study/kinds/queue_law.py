"""The queue between a loader and a device: how long it hides a loader that is too slow, and what remains then.

One worker makes a batch in `load_seconds`, unless `num_ready` of them wait already; a step takes one and computes for
`compute_seconds`. All `num_ready` are there before the first step. 0 stands for no worker: the process that trains
loads each batch itself, after the step before.
"""

import math
from collections.abc import Sequence


def hidden_steps(load_seconds: float, compute_seconds: float, num_ready: float) -> float:
    """The law: steps up to this number, counted from 0, find their batch ready. inf for a loader that is fast enough.

    Step n wants its batch at n * compute_seconds, and it is made at (n - num_ready + 1) * load_seconds. A batch that is
    made in part counts as that part of one.
    """
    if load_seconds <= compute_seconds:
        return math.inf
    return max(0, num_ready - 1) / (1 - compute_seconds / load_seconds)


def mean_step_seconds(load_seconds: float, compute_seconds: float, num_ready: float, num_steps: int) -> float:
    """The law: of the first `num_steps`. With ever more steps it comes near the larger of the two times."""
    if num_ready == 0:
        return load_seconds + compute_seconds
    return max(compute_seconds, ((num_steps - num_ready) * load_seconds + compute_seconds) / num_steps)


def simulated_waits(
    load_seconds: Sequence[float], compute_seconds: float, num_ready: int, *, unfinished_seconds: float = 0.0
) -> list[float]:
    """Seconds that each step waits for its batch. A step's time is `compute_seconds` and its wait.

    load_seconds: of each batch, those ready at first too. unfinished_seconds: the last of these needs so long still.
    """
    taken: list[float] = []
    waits: list[float] = []
    free = made = 0.0  # when the device can begin the next step; when the last batch was made
    for step, seconds in enumerate(load_seconds):
        if num_ready == 0:
            made = free + seconds
        elif step == num_ready - 1:
            made = unfinished_seconds
        elif step >= num_ready:
            made = max(made, taken[step - num_ready]) + seconds
        taken.append(max(free, made))
        waits.append(taken[-1] - free)
        free = taken[-1] + compute_seconds
    return waits


def first_wait(waits: Sequence[float], least: float) -> int | None:
    """How many steps come before the first that waits longer than that; None where none does."""
    return next((step for step, seconds in enumerate(waits) if seconds > least), None)


def idle_share(waits: Sequence[float], compute_seconds: float) -> float:
    """Of the device's time, 0 to 1."""
    return sum(waits) / (sum(waits) + compute_seconds * len(waits))
