"""Attributes the idle time of the accelerator in a window of training to causes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTHY_BUSY = 0.9
"""Busy share from which a run is healthy: MLPerf Storage's limit for ResNet-50."""
MIN_STEPS = 20
"""Fewest steps for a verdict: TraceML's rule."""


@dataclass(frozen=True)
class IdleWindow:
    """Seconds are sums over the window; worker_seconds and queue_seconds are means per batch.

    seconds: wall time. device_seconds: see `DeviceWork` of run/hook_timer.py. kernel_seconds: time in which any kernel
    ran, in steps or not; None if unknown. fetch_wait_seconds: time of the host in `next(loader)`. callback_seconds: own
    time of all callbacks, without checkpoint_seconds, logging_seconds and validation_seconds. copy_seconds: time of
    copies to the device. cpu_wait_seconds: time in which the main thread was ready, but no CPU was free.

    worker_seconds: time of a worker by cause, "read", "decode" and "cpu"; empty if unknown. queue_depth: ready batches
    at a request for the next batch. queue_seconds: how long that batch had been ready.
    """

    seconds: float
    num_steps: int
    device_seconds: float
    kernel_seconds: float | None = None
    fetch_wait_seconds: float = 0.0
    validation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    logging_seconds: float = 0.0
    callback_seconds: float = 0.0
    copy_seconds: float = 0.0
    cpu_wait_seconds: float = 0.0
    worker_seconds: Mapping[str, float] = field(default_factory=dict)
    num_workers: int = 0
    queue_depth: float = 0.0
    queue_seconds: float = 0.0


@dataclass(frozen=True)
class Attribution:
    """shares: share of the window by cause, "busy" first; no share is negative and the sum is 1.

    verdict: the largest cause of idleness, "healthy" or "undecided".
    """

    shares: Mapping[str, float]
    verdict: str


def attribute(window: IdleWindow) -> Attribution:
    """Attribute the accelerator's idle time to causes.

    Work of the host outside of training steps costs nothing while the device still has queued work. So the idle time of
    the device is divided among the causes, not the time that the causes took:

    1. Activities that delay the host (waiting for a batch, validation, checkpoints, logging, callbacks) get the idle
       time in proportion to their seconds, and at most their seconds.
    2. Copies get the remaining idle time, at most their seconds; the device copies while the host continues.
    3. A main thread that waits for a CPU gets the remaining idle time, at most its wait.
    4. The rest is unexplained, for example a host that waits for the device: afterwards the queue is empty, and the
       device is idle until the next launch.

    The wait for a batch counts for the main process (order of batches, its thread, the copy into pinned memory) if
    batches were ready for as long as it waited and workers had spare time. Otherwise the wait is divided as a worker's
    time is; if that is unknown, the wait is unexplained.

    Raises ValueError for a window without length.
    """
    if window.seconds <= 0:
        raise ValueError(f"a window of {window.seconds} s")
    busy_seconds = window.device_seconds
    if window.kernel_seconds is not None:  # the device is idle between the kernels of a step too
        busy_seconds = min(busy_seconds, window.kernel_seconds)
    left = max(0.0, window.seconds - busy_seconds)
    seconds = dict.fromkeys(CAUSES, 0.0)
    for causes in (_delays_of_the_host(window), {"copy": window.copy_seconds}, {"cpu": window.cpu_wait_seconds}):
        total = sum(causes.values())
        scale = min(1.0, left / total) if total else 0.0
        for cause, own_seconds in causes.items():
            seconds[cause] += own_seconds * scale
        left = max(0.0, left - total * scale)
    seconds["unexplained"] = left
    idle = {cause: min(1.0, part / window.seconds) for cause, part in seconds.items()}  # rounding may exceed 1
    busy = max(0.0, 1 - sum(idle.values()))
    verdict = "healthy" if busy >= HEALTHY_BUSY else max(idle, key=lambda cause: idle[cause])
    return Attribution({"busy": busy} | idle, verdict if window.num_steps >= MIN_STEPS else "undecided")


def _delays_of_the_host(window: IdleWindow) -> dict[str, float]:
    """Seconds of each cause that delays the host."""
    waited, was_ready = window.fetch_wait_seconds, _was_ready(window)
    by_workers = 0.0 if was_ready else waited / (sum(window.worker_seconds.values()) or math.inf)
    return {cause: by_workers * seconds for cause, seconds in window.worker_seconds.items()} | {
        "main_process": waited * was_ready + window.callback_seconds,
        "logging": window.logging_seconds,
        "checkpoint": window.checkpoint_seconds,
        "validation": window.validation_seconds,
    }


def _was_ready(window: IdleWindow) -> bool:
    """Whether batches were ready while the host waited. The queue depth is not enough: workers that finish together
    fill the queue for a few steps only."""
    making_seconds = window.num_steps * sum(window.worker_seconds.values())
    workers_had_time = making_seconds < HEALTHY_BUSY * window.num_workers * window.seconds
    ready_for_long = window.num_steps * window.queue_seconds >= window.fetch_wait_seconds
    return window.queue_depth >= 1 and ready_for_long and workers_had_time


CAUSES = {
    "read": ("waiting for storage", "more requests in flight, or files packed onto a local disk (imagenet-opt pack)"),
    "decode": ("decoding images", "more CPUs, or smaller images (imagenet-opt pack for=224)"),
    "cpu": ("waiting for a CPU", "end other processes, fewer workers, or more CPUs"),
    "main_process": (
        "the main process",
        "look at the callbacks and at operations in the step that wait for the device",
    ),
    "logging": ("logging", "log less often (trainer.log_every_n_steps)"),
    "checkpoint": ("saving checkpoints", "save less often (callbacks.checkpoint.every_minutes)"),
    "validation": ("validation", "validate less often (trainer.check_val_every_n_epoch)"),
    "copy": ("copying to the device", "send smaller batches, or pin their memory"),
    "unexplained": ("none of the causes that are measured in training", "find the cause by experiment"),
}
"""Cause -> its name for users, and its remedy."""


def sentence(shares: Mapping[str, float], device: str = "the device") -> str:
    """A sentence about the largest cause of idleness in a window with enough steps. shares: of Attribution."""
    percent = {name: f"{100 * share:.0f} %" for name, share in shares.items()}
    if shares["busy"] >= HEALTHY_BUSY:
        return f"none, {device} is busy {percent['busy']} of the time"
    cause = max(CAUSES, key=lambda name: shares[name])
    name, remedy = CAUSES[cause]
    # the doctor does not measure validation
    proof = "" if cause == "validation" else "; `imagenet-opt doctor` confirms the cause"
    return f"{name}, {percent[cause]} of the time; {device} is busy {percent['busy']}. Next: {remedy}{proof}"
