"""Where the time of the accelerator went in one window of training, by cause."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

HEALTHY_BUSY = 0.9
"""Share of time, MLPerf Storage's limit for ResNet-50."""
MIN_STEPS = 20
"""Below, nothing is said; TraceML's rule."""
_GRID = 2**40  # shares are multiples of 1 / _GRID, so that floats add up exactly


@dataclass(frozen=True)
class Window:
    """Seconds are sums over the window, except read_seconds, decode_seconds and queue_seconds: a batch's mean.

    seconds: wall. device_seconds: of the accelerator at work on steps; None when unknown, then step_seconds counts, the
    host's time in the training step. fetch_wait_seconds: host blocked in `next(loader)`. callback_seconds: own time of
    all callbacks, without what is in checkpoint_seconds, logging_seconds and validation_seconds. copy_seconds: of
    copies to the device.

    read_seconds, decode_seconds: of a worker, blocked in reading and decoding; both 0 when unknown. queue_depth:
    batches ready when one was asked for. queue_seconds: how long it had been ready by then.
    """

    seconds: float
    num_steps: int
    step_seconds: float
    device_seconds: float | None = None
    fetch_wait_seconds: float = 0.0
    validation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    logging_seconds: float = 0.0
    callback_seconds: float = 0.0
    copy_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_workers: int = 0
    queue_depth: float = 0.0
    queue_seconds: float = 0.0


@dataclass(frozen=True)
class Attribution:
    """shares: of the window by cause, "busy" first; none is negative and their sum is exactly 1.

    verdict: the largest cause of idleness, "healthy" or "undecided".
    """

    shares: Mapping[str, float]
    verdict: str


def attribute(window: Window) -> Attribution:
    """What the accelerator's idle time is due to.

    What the host does beside training steps costs nothing as long as the device still has work queued, so causes share
    the time in which the device was idle, not the time that they took:

    1. What kept the host from the next step (waiting for a batch, validation, checkpoints, logging, callbacks) gets
       the idle time in proportion to its seconds, and never more than these.
    2. What is left may be due to copies, up to their seconds: the device makes them while the host goes on.
    3. The rest is unexplained, such as a host that waits for the device: afterwards nothing is queued, and the device
       is idle until the next launch.

    Waiting for a batch is the main process's (order of batches, its thread, the copy into pinned memory) where batches
    were ready as long as it waited and workers had time to spare. Otherwise it is divided as a worker's time is into
    reading and decoding; where nothing is known of that it is unexplained.

    Raises ValueError for a window without length.
    """
    if window.seconds <= 0:
        raise ValueError(f"a window of {window.seconds} s")
    left = max(0.0, window.seconds - _busy_seconds(window))
    seconds: dict[str, float] = {}
    for causes in (_on_the_host(window), {"copy": window.copy_seconds}):
        given = _divide(left, causes)
        left = max(0.0, left - sum(given.values()))
        seconds |= given
    idle = {
        cause: floor(part / window.seconds * _GRID) / _GRID for cause, part in (seconds | {"unexplained": left}).items()
    }
    busy = 1 - sum(idle.values())
    return Attribution({"busy": busy} | idle, _verdict(window, busy, idle))


def _busy_seconds(window: Window) -> float:
    return window.step_seconds if window.device_seconds is None else window.device_seconds


def _on_the_host(window: Window) -> dict[str, float]:
    read, decode, main_process = _fetch_wait(window)
    return {
        "read": read,
        "decode": decode,
        "main_process": main_process + window.callback_seconds,
        "logging": window.logging_seconds,
        "checkpoint": window.checkpoint_seconds,
        "validation": window.validation_seconds,
    }


def _fetch_wait(window: Window) -> tuple[float, float, float]:
    """Of reading, decoding and the main process; less than all where nothing is known of the workers."""
    waited, making = window.fetch_wait_seconds, window.read_seconds + window.decode_seconds
    if _was_ready(window):
        return 0.0, 0.0, waited
    if not making:
        return 0.0, 0.0, 0.0
    return waited * window.read_seconds / making, waited * window.decode_seconds / making, 0.0


def _was_ready(window: Window) -> bool:
    """Depth alone misleads: workers that all end at once leave batches for the few steps until the next drought."""
    making_seconds = window.num_steps * (window.read_seconds + window.decode_seconds)
    spare = making_seconds < HEALTHY_BUSY * window.num_workers * window.seconds
    lay = window.num_steps * window.queue_seconds >= window.fetch_wait_seconds
    return window.queue_depth >= 1 and lay and spare


def _divide(seconds: float, causes: Mapping[str, float]) -> dict[str, float]:
    """In proportion to the causes' seconds, and to none more than these."""
    total = sum(causes.values())
    scale = min(1.0, seconds / total) if total else 0.0
    return {cause: wanted * scale for cause, wanted in causes.items()}


def _verdict(window: Window, busy: float, idle: Mapping[str, float]) -> str:
    if window.num_steps < MIN_STEPS:
        return "undecided"
    return "healthy" if busy >= HEALTHY_BUSY else max(idle, key=lambda cause: idle[cause])


CAUSES = {
    "read": ("waiting for storage", "more requests in flight, or files packed onto a local disk (imagenet-opt pack)"),
    "decode": ("decoding images", "more CPUs, or smaller images (imagenet-opt pack max_side=...)"),
    "main_process": ("the main process", "look at its callbacks and at what waits for the device in the step"),
    "logging": ("logging", "log less often (trainer.log_every_n_steps)"),
    "checkpoint": ("saving checkpoints", "save less often (checkpoint.every_minutes)"),
    "validation": ("validation", "validate less often (trainer.check_val_every_n_epoch)"),
    "copy": ("copying to the device", "send smaller batches, or pin their memory"),
    "unexplained": ("no cause that is measured while training", "find it by experiment"),
}
"""Cause of attribution.py -> what it is called, and what helps."""
PROOF = "`imagenet-opt doctor` proves it"


def sentence(shares: Mapping[str, float], device: str = "the device") -> str:
    """Where the time of a window went that was long enough to tell. shares: of Attribution."""
    busy = shares["busy"]
    if busy >= HEALTHY_BUSY:
        return f"none, {device} is busy {_percent(busy)} of the time"
    cause = max(CAUSES, key=lambda name: shares[name])
    name, remedy = CAUSES[cause]
    proof = "" if cause == "validation" else f"; {PROOF}"  # which the doctor leaves out
    return f"{name}, {_percent(shares[cause])} of the time; {device} is busy {_percent(busy)}. Next: {remedy}{proof}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
