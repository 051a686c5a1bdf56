"""Windows of training with a known cause of idleness, and laws that hold for any window."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagenet_opt.measure.telemetry.idle_causes import IdleWindow, attribute

CAUSES = ["busy", "read", "decode", "cpu", "main_process", "logging", "checkpoint", "validation", "copy", "unexplained"]
BUSY_WINDOW = IdleWindow(seconds=10, num_steps=100, device_seconds=9.7)


def waiting(seconds: float, **more: Any) -> dict[str, Any]:
    """A host with 8 workers that waits for batches while the device is idle."""
    return {"device_seconds": 10 - seconds, "fetch_wait_seconds": seconds, "num_workers": 8} | more


WINDOWS: dict[str, tuple[dict[str, Any], dict[str, float], str]] = {
    "slow storage: workers spend 90 % of their time in reads": (
        waiting(8, worker_seconds={"read": 0.72, "decode": 0.08}),
        {"busy": 0.2, "read": 0.72, "decode": 0.08},
        "read",
    ),
    "slow decoding in 2 workers": (
        waiting(6.5, device_seconds=4, worker_seconds={"read": 0.02, "decode": 0.18}, num_workers=2),
        {"busy": 0.4, "read": 0.06, "decode": 0.54},
        "decode",
    ),
    "slow storage, and the batch that was waited for counts as ready": (
        waiting(5, worker_seconds={"read": 0.4}, queue_depth=1.0, queue_seconds=0.002), {"busy": 0.5, "read": 0.5},
        "read",
    ),
    "batches are ready now and then, but the workers have no time left": (
        waiting(5, worker_seconds={"read": 0.8}, queue_depth=2, queue_seconds=0.1), {"busy": 0.5, "read": 0.5}, "read",
    ),
    "batches are ready, but the thread that delivers them is slow": (
        waiting(3, worker_seconds={"decode": 0.05}, queue_depth=14, queue_seconds=1.3),
        {"busy": 0.7, "main_process": 0.3},
        "main_process",
    ),
    "two workers on one free CPU": (
        waiting(4, worker_seconds={"read": 0.02, "decode": 0.09, "cpu": 0.09}, num_workers=2),
        {"busy": 0.6, "read": 0.04, "decode": 0.18, "cpu": 0.18},
        "decode",
    ),
    "the main thread launches late, because no CPU is free": (
        {"device_seconds": 3, "cpu_wait_seconds": 5, "callback_seconds": 1},
        {"busy": 0.3, "main_process": 0.1, "cpu": 0.5, "unexplained": 0.1},
        "cpu",
    ),
    "gaps between the kernels of a step": (
        {"device_seconds": 9.9, "kernel_seconds": 4}, {"busy": 0.4, "unexplained": 0.6}, "unexplained",
    ),
    "kernels of others, or of a validation": ({"kernel_seconds": 10}, {"busy": 0.97, "unexplained": 0.03}, "healthy"),
    "a loader without times": (waiting(5), {"busy": 0.5, "unexplained": 0.5}, "unexplained"),
    "a callback of 20 ms a step": (
        {"device_seconds": 7.5, "callback_seconds": 2.1},
        {"busy": 0.75, "main_process": 0.21, "unexplained": 0.04},
        "main_process",
    ),
    "copies, and a quick host": ({"device_seconds": 5, "copy_seconds": 6}, {"busy": 0.5, "copy": 0.5}, "copy"),
    "no known cause": ({"device_seconds": 6}, {"busy": 0.6, "unexplained": 0.4}, "unexplained"),
    "too few steps": (
        {"device_seconds": 1, "num_steps": 19, "checkpoint_seconds": 9}, {"busy": 0.1, "checkpoint": 0.9}, "undecided",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_the_cause_of_a_window(name: str) -> None:
    seconds, shares, verdict = WINDOWS[name]
    attribution = attribute(replace(BUSY_WINDOW, **seconds))
    assert attribution.shares == pytest.approx(dict.fromkeys(CAUSES, 0.0) | shares, abs=1e-9)
    assert attribution.verdict == verdict


any_seconds = st.just(0.0) | st.floats(1e-9, 1e4)  # the smallest numbers have few digits
KINDS = ("fetch_wait", "validation", "checkpoint", "logging", "callback", "copy", "cpu_wait", "queue", "device")
windows = st.builds(
    IdleWindow,
    seconds=st.floats(1e-3, 1e4),
    num_steps=st.integers(0, 1000),
    kernel_seconds=st.none() | any_seconds,
    worker_seconds=st.dictionaries(st.sampled_from(["read", "decode", "cpu"]), any_seconds),
    num_workers=st.integers(0, 64),
    queue_depth=st.floats(0, 100),
    **{f"{kind}_seconds": any_seconds for kind in KINDS},
)


@settings(deadline=None)
@given(windows)
@example(IdleWindow(seconds=661.9316244487187, num_steps=0, device_seconds=0.0, cpu_wait_seconds=4460.27420629286))
def test_shares_sum_up_to_one_and_no_cause_gets_more_than_its_time(window: IdleWindow) -> None:
    shares, seconds = attribute(window).shares, window.seconds
    assert list(shares) == CAUSES
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares.values())
    busy_seconds = window.device_seconds
    if window.kernel_seconds is not None:
        busy_seconds = min(busy_seconds, window.kernel_seconds)
    assert shares["busy"] == pytest.approx(min(1, busy_seconds / seconds), abs=1e-9)
    for cause in ("logging", "checkpoint", "validation", "copy"):
        assert shares[cause] * seconds <= getattr(window, f"{cause}_seconds") * (1 + 1e-9)
    assert (shares["read"] + shares["decode"]) * seconds <= window.fetch_wait_seconds * (1 + 1e-9)
