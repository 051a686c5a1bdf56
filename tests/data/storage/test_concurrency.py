"""Requests follow what a storage can do: its latency, but not the queue in front of a narrow line."""

import pytest

from imagenet_opt.data.storage.concurrency import ReadConcurrency

PACE = 2e-3


def settled(depth: ReadConcurrency, latency: float, line: float = 0.0, *, batches: int = 400) -> list[int]:
    """Requests in flight after each batch of 64, where a request takes `latency`, and `line` seconds of a line that
    takes one after the other."""
    found = []
    for _ in range(batches):
        depth.update(latency=max(latency, depth.now * line), pace=PACE, most=1200, answers=64)
        found.append(depth.now)
    return found


@pytest.mark.parametrize(("latency", "least"), [(0.02, 10), (0.1, 50), (0.329, 165), (2.0, 512)])
def test_as_many_as_come_due_while_one_is_answered(latency: float, least: int) -> None:
    found = settled(ReadConcurrency(), latency)
    assert min(found[60:]) >= least
    assert max(found) <= 1.6 * least


@pytest.mark.parametrize("line", [0.01, 0.5])
def test_a_narrow_line_is_not_asked_for_ever_more(line: float) -> None:
    found = settled(ReadConcurrency(), 0.001, line)
    assert max(found) <= 64
    assert sorted(found)[len(found) // 2] <= 32


def test_more_requests_are_kept_as_long_as_they_bring_more() -> None:
    """1000 requests a second at most, reached with 100 of 0.1 s."""
    depth = ReadConcurrency()
    depth.update(latency=0.1, pace=1e-4, most=1200, answers=64)
    for _ in range(400):
        depth.update(latency=max(0.1, depth.now * 1e-3), pace=1e-4, most=1200, answers=64)
    assert 100 <= depth.now <= 256


def test_storage_that_becomes_slow_or_wide_later_is_followed() -> None:
    depth = ReadConcurrency()
    assert settled(depth, 0.0005)[-1] == 1
    assert settled(depth, 0.329)[-1] >= 165
    assert settled(depth, 0.02)[-1] <= 20
    assert settled(depth, 0.001, 0.05)[-1] <= 64 * 8
    assert settled(depth, 0.329, batches=1500)[-1] >= 165


def test_a_pause_of_training_is_no_pace() -> None:
    """After a minute of validation as many requests are in flight as before, in the batches that follow too."""
    depth = ReadConcurrency()
    before = settled(depth, 0.1)[-1]
    depth.update(latency=0.1, pace=60 / 64, most=1200, answers=64)
    assert [depth.now, *settled(depth, 0.1, batches=20)] == [before] * 21


def test_what_is_read_ahead_has_room() -> None:
    depth = ReadConcurrency()
    for _ in range(50):
        depth.update(latency=1.0, pace=PACE, most=20, answers=64)
    assert depth.now == 20
