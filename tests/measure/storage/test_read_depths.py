"""Reads with several requests in flight: rates of requests with known times, and real threads."""

import itertools
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose

from imagenet_opt.errors import ReadTimeout
from imagenet_opt.measure.storage.read_depths import Indices, Request, read_at_depths, summary


@pytest.mark.parametrize("depth", [1, 64])
def test_littles_law(depth: int) -> None:
    """`depth` readers, each with one request after the other; measured after a ramp-up."""
    requests = [Request(0.13 * i, 0.13 * (i + 1), 1, 110_000) for i in range(70) for _ in range(depth)]
    reads = summary(requests, depth, 3.0, 6.0)
    assert_allclose(reads.images_per_second, depth / 0.13)
    assert_allclose(reads.windows, depth / 0.13)  # answers arrive together; windows of 0.5 s contain 3 or 4 such bursts
    assert_allclose(reads.megabytes_per_second, depth / 0.13 * 0.11)
    assert_allclose(reads.latency_median, 0.13)
    assert reads.ceiling.estimate.num == 6
    assert reads.ceiling.facts["latency_median"] == reads.latency_median


def test_requests_count_for_the_time_in_which_they_ran() -> None:
    """The first request began before, the second ends later: each counts in part. The third does not count."""
    requests = [Request(0, 2, 10, 2_000_000), Request(6, 8, 10, 2_000_000), Request(7, 9, 10, 1)]
    reads = summary(requests, 2, 1, 7)
    assert_allclose(reads.windows, [5, 0, 0, 0, 0, 5])
    assert_allclose(reads.megabytes_per_second, 2 / 6)
    assert reads.latency_median == 2


def test_requests_are_in_flight_together_and_read_once() -> None:
    together = threading.Barrier(4, timeout=20)
    read_indices: list[int] = []

    def read(indices: Indices) -> list[bytes]:
        together.wait()  # three readers would wait for ever
        read_indices.extend(indices.tolist())
        return [bytes(1000)] * len(indices)

    groups = np.arange(24).reshape(8, 3)
    (reads,) = read_at_depths(read, groups, depths=(4, 16), seconds=20)
    assert sorted(read_indices) == list(range(24))
    assert reads.depth == 4
    assert_allclose(reads.megabytes_per_second / np.mean(reads.windows), 0.001)


def test_a_storage_without_answers_and_errors_of_reads_are_errors() -> None:
    never = threading.Event()
    with pytest.raises(ReadTimeout, match="none of 2 reads"):
        read_at_depths(lambda indices: never.wait(), np.arange(10)[:, None], depths=(2,), seconds=0.05)
    never.set()

    def read(indices: Indices) -> list[bytes]:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        read_at_depths(read, itertools.repeat(np.zeros(1, np.int64)), depths=(1, 4))
