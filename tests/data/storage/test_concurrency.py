"""The number of requests follows the latency of a storage, but not the queue before a narrow line."""

import pytest

from imagenet_opt.data.storage.concurrency import ReadConcurrency


def settled(
    depth: ReadConcurrency,
    latency: float,
    line: float = 0.0,
    *,
    batches: int = 400,
    pace: float = 2e-3,
    most: int = 1200,
) -> list[int]:
    """Requests in flight after each batch of 64. A request takes `latency`, and occupies a shared line for `line`
    seconds."""
    actual = []
    for _ in range(batches):
        depth.update(latency=max(latency, depth.now * line), pace=pace, most=most, answers=64)
        actual.append(depth.now)
    return actual


@pytest.mark.parametrize(("latency", "least"), [(0.02, 10), (0.1, 50), (0.329, 165), (2.0, 512)])
def test_as_many_requests_as_become_due_during_one_answer(latency: float, least: int) -> None:
    actual = settled(ReadConcurrency(), latency)
    assert min(actual[60:]) >= least
    assert max(actual) <= 1.6 * least


@pytest.mark.parametrize("line", [0.01, 0.5])
def test_a_narrow_line_limits_the_requests(line: float) -> None:
    actual = settled(ReadConcurrency(), 0.001, line)
    assert max(actual) <= 64
    assert sorted(actual)[len(actual) // 2] <= 32


def test_the_requests_grow_until_the_line_is_full() -> None:
    """1000 requests a second at most, reached with 100 of 0.1 s."""
    depth = ReadConcurrency()
    depth.update(latency=0.1, pace=1e-4, most=1200, answers=64)
    assert 100 <= settled(depth, 0.1, 1e-3, pace=1e-4)[-1] <= 256


def test_the_requests_follow_changes_of_the_storage() -> None:
    depth = ReadConcurrency()
    assert settled(depth, 0.0005)[-1] == 1
    assert settled(depth, 0.329)[-1] >= 165
    assert settled(depth, 0.02)[-1] <= 20
    assert settled(depth, 0.001, 0.05)[-1] <= 64 * 8
    assert settled(depth, 0.329, batches=1500)[-1] >= 165


def test_a_pause_of_training_changes_nothing() -> None:
    depth = ReadConcurrency()
    before = settled(depth, 0.1)[-1]
    depth.update(latency=0.1, pace=60 / 64, most=1200, answers=64)
    assert [depth.now, *settled(depth, 0.1, batches=20)] == [before] * 21


def test_memory_limits_the_requests() -> None:
    assert settled(ReadConcurrency(), 1.0, batches=50, most=20)[-1] == 20
