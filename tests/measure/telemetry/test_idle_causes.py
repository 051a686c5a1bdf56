"""Plain stories end in the verdict that a reader would give, and shares keep their laws for any window."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_opt.measure.telemetry.idle_causes import Window, attribute

CAUSES = ["busy", "read", "decode", "main_process", "logging", "checkpoint", "validation", "copy", "unexplained"]
BUSY_WINDOW = Window(seconds=10, num_steps=100, step_seconds=1, device_seconds=9.7)

STORIES: dict[str, tuple[dict[str, Any], dict[str, float], str]] = {
    "slow storage: 8 workers spend 9 of 10 parts of their time blocked in reads": (
        dict(device_seconds=2, fetch_wait_seconds=8, read_seconds=0.72, decode_seconds=0.08, num_workers=8),
        dict(busy=0.2, read=0.72, decode=0.08),
        "read",
    ),
    "slow decode on 2 workers": (
        dict(device_seconds=4, fetch_wait_seconds=6.5, read_seconds=0.02, decode_seconds=0.18, num_workers=2),
        dict(busy=0.4, read=0.06, decode=0.54),
        "decode",
    ),
    "slow decode, and the workers end in bursts, so that often some batches are ready": (
        dict(
            device_seconds=7,
            fetch_wait_seconds=3,
            decode_seconds=0.8,
            num_workers=8,
            queue_depth=3.5,
            queue_seconds=0.25,
        ),
        dict(busy=0.7, decode=0.3),
        "decode",
    ),
    "slow storage, and the batch that was waited for counts as ready": (
        dict(
            device_seconds=5,
            fetch_wait_seconds=5,
            read_seconds=0.4,
            num_workers=8,
            queue_depth=1.0,
            queue_seconds=0.002,
        ),
        dict(busy=0.5, read=0.5),
        "read",
    ),
    "batches lie ready, but the thread that hands them out is slow": (
        dict(
            device_seconds=7,
            fetch_wait_seconds=3,
            decode_seconds=0.05,
            num_workers=8,
            queue_depth=14,
            queue_seconds=1.3,
        ),
        dict(busy=0.7, main_process=0.3),
        "main_process",
    ),
    "storage stalls now and then, and the few batches that were ready had waited for long": (
        dict(device_seconds=7, fetch_wait_seconds=3, read_seconds=0.3, num_workers=8, queue_depth=0.4, queue_seconds=2),
        dict(busy=0.7, read=0.3),
        "read",
    ),
    "a checkpoint of 3 s": (dict(device_seconds=7, checkpoint_seconds=3), dict(busy=0.7, checkpoint=0.3), "checkpoint"),
    "logging at each step": (dict(device_seconds=8.5, logging_seconds=1.8), dict(busy=0.85, logging=0.15), "logging"),
    "a callback of 20 ms a step beside one that costs little": (
        dict(device_seconds=7.5, callback_seconds=2.1),
        dict(busy=0.75, main_process=0.21, unexplained=0.04),
        "main_process",
    ),
    "a validation within the window": (
        dict(device_seconds=6, validation_seconds=4),
        dict(busy=0.6, validation=0.4),
        "validation",
    ),
    "callbacks and logging that hide behind a busy device": (
        dict(device_seconds=9.7, callback_seconds=4.0, logging_seconds=2.0),
        dict(busy=0.97, main_process=0.02, logging=0.01),
        "healthy",
    ),
    "storage is slow, and copies that overlap are not to blame": (
        dict(device_seconds=4, fetch_wait_seconds=6, read_seconds=1, num_workers=8, copy_seconds=3),
        dict(busy=0.4, read=0.6),
        "read",
    ),
    "the device waits for copies while nothing holds up the host": (
        dict(device_seconds=5, copy_seconds=6),
        dict(busy=0.5, copy=0.5),
        "copy",
    ),
    "nobody knows": (dict(device_seconds=6), dict(busy=0.6, unexplained=0.4), "unexplained"),
    "a loader that tells nothing": (
        dict(device_seconds=5, fetch_wait_seconds=5),
        dict(busy=0.5, unexplained=0.5),
        "unexplained",
    ),
    "no clock on the device: the host's steps count": (
        dict(device_seconds=None, step_seconds=6, fetch_wait_seconds=4, decode_seconds=0.1),
        dict(busy=0.6, decode=0.4),
        "decode",
    ),
    "too short to say": (
        dict(device_seconds=1, num_steps=19, checkpoint_seconds=9),
        dict(busy=0.1, checkpoint=0.9),
        "undecided",
    ),
    "clocks that disagree a little": (dict(device_seconds=10.01), dict(busy=1.0), "healthy"),
}


@pytest.mark.parametrize("story", STORIES)
def test_stories(story: str) -> None:
    facts, shares, verdict = STORIES[story]
    found = attribute(replace(BUSY_WINDOW, **facts))
    assert found.shares == pytest.approx(dict.fromkeys(CAUSES, 0.0) | shares, abs=1e-9)
    assert found.verdict == verdict


@pytest.mark.parametrize(("device_seconds", "verdict"), [(9.1, "healthy"), (8.9, "checkpoint")])
def test_limit(device_seconds: float, verdict: str) -> None:
    found = attribute(replace(BUSY_WINDOW, device_seconds=device_seconds, checkpoint_seconds=5.0))
    assert found.verdict == verdict


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 0 s"):
        attribute(replace(BUSY_WINDOW, seconds=0))


some = st.floats(0, 1e4)
windows = st.builds(
    Window,
    seconds=st.floats(1e-3, 1e4),
    num_steps=st.integers(0, 1000),
    step_seconds=some,
    device_seconds=st.none() | some,
    fetch_wait_seconds=some,
    validation_seconds=some,
    checkpoint_seconds=some,
    logging_seconds=some,
    callback_seconds=some,
    copy_seconds=some,
    read_seconds=some,
    decode_seconds=some,
    num_workers=st.integers(0, 64),
    queue_depth=st.floats(0, 100),
    queue_seconds=some,
)


@given(windows)
def test_shares_are_a_whole(window: Window) -> None:
    found = attribute(window)
    assert list(found.shares) == CAUSES
    assert sum(found.shares.values()) == 1
    assert all(0 <= share <= 1 for share in found.shares.values())
    busy_seconds = window.step_seconds if window.device_seconds is None else window.device_seconds
    assert found.shares["busy"] == pytest.approx(min(1, busy_seconds / window.seconds), abs=1e-9)


@given(windows)
def test_no_cause_gets_more_than_its_own_time(window: Window) -> None:
    shares, seconds = attribute(window).shares, window.seconds
    for cause in ("logging", "checkpoint", "validation", "copy"):
        assert shares[cause] * seconds <= getattr(window, f"{cause}_seconds") * (1 + 1e-9)
    assert (shares["read"] + shares["decode"]) * seconds <= window.fetch_wait_seconds * (1 + 1e-9)
    others = window.callback_seconds + window.fetch_wait_seconds
    assert shares["main_process"] * seconds <= others * (1 + 1e-9)


@given(windows, st.sampled_from(["logging", "checkpoint", "validation", "copy"]), some)
def test_more_of_a_cause_is_no_smaller_share_of_it_and_no_larger_of_the_rest(
    window: Window, cause: str, added: float
) -> None:
    name = f"{cause}_seconds"
    before = attribute(window).shares
    after = attribute(replace(window, **{name: getattr(window, name) + added})).shares
    assert after[cause] >= before[cause] - 1e-9
    assert after["unexplained"] <= before["unexplained"] + 1e-9
    assert after["busy"] == pytest.approx(before["busy"], abs=1e-9)


@given(windows, some)
def test_a_busier_device_makes_no_cause_larger(window: Window, added: float) -> None:
    known = replace(window, device_seconds=window.device_seconds or 0.0)
    before, after = attribute(known), attribute(replace(known, device_seconds=(known.device_seconds or 0.0) + added))
    assert all(after.shares[cause] <= before.shares[cause] + 1e-9 for cause in CAUSES[1:])


@given(windows)
def test_waiting_is_read_and_decode_as_a_worker_spends_its_time(window: Window) -> None:
    starved = replace(window, queue_depth=0.0)
    shares = attribute(starved).shares
    assert shares["read"] * starved.decode_seconds == pytest.approx(
        shares["decode"] * starved.read_seconds, abs=1e-7 * (1 + starved.read_seconds + starved.decode_seconds)
    )
