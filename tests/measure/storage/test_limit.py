"""Limits of simulated storages with known latency and bandwidth; first against second reads."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from imagenet_opt.measure.storage.limit import FirstTouch, storage_limit, touch_twice
from imagenet_opt.measure.storage.page_cache import Eviction, Residency
from imagenet_opt.measure.storage.read_depths import Indices
from tests.measure.storage.test_read_depths import IMAGE_BYTES, simulated

DEPTHS = (1, 4, 16, 64, 256)
COLD = Eviction(Residency(0.0, "mincore"), 10)
KEPT = Eviction(Residency(1.0, "mincore"), 10)
UNKNOWN = Eviction(Residency(None, "no right to ask"), 10)


def test_latency_alone() -> None:
    limit = storage_limit([simulated(depth, latency=0.1) for depth in DEPTHS])
    assert limit.kind == "latency"
    assert_allclose([limit.images_per_second, limit.latency, limit.knee], [2560, 0.1, 256])
    assert limit.evidence.startswith("256 requests in flight read 256 times as fast as 1, 2,560 images/s = 282 MB/s")


@pytest.mark.parametrize("images", [1, 12])
def test_bandwidth_from_the_knee_on(images: int) -> None:
    """The knee is at (latency + transfer) / transfer requests in flight, which fill the line."""
    curve = [simulated(depth, latency=0.1, bytes_per_second=20e6, images=images, seconds=20) for depth in DEPTHS]
    limit = storage_limit(curve[::-1])
    assert limit.kind == "bandwidth"
    assert_allclose(limit.megabytes_per_second, 20, rtol=0.02)
    transfer = images * IMAGE_BYTES / 20e6
    assert_allclose(limit.knee, (0.1 + transfer) / transfer, rtol=0.02)
    assert limit.at(limit.knee / 2) == "latency"
    assert limit.at(2 * limit.knee) == "bandwidth"
    assert "read no faster than" in limit.evidence


def test_a_stall_of_the_storage_does_not_hide_its_bandwidth() -> None:
    """During the stall, one request in flight reads a fiftieth of its usual rate."""
    shallowest, *deeper = [simulated(depth, latency=0.01, bytes_per_second=12e6) for depth in DEPTHS]
    stalled = replace(shallowest, windows=tuple(rate / 50 for rate in shallowest.windows))
    limit = storage_limit([stalled, *deeper])
    assert limit.kind == "bandwidth" and limit.at(64) == "bandwidth"


@pytest.mark.parametrize(
    "options",
    [{"latency": 0.1, "bytes_per_second": 400e6}, {"latency": 0.02, "every": 50, "late": 0.5, "seconds": 1.5}],
)
def test_a_bandwidth_that_is_not_reached_and_late_answers_are_latency(options: dict[str, float]) -> None:
    limit = storage_limit([simulated(depth, **options) for depth in DEPTHS])
    assert limit.kind == limit.at(10_000) == "latency"


def test_a_reader_out_of_cpu_is_not_a_slow_storage() -> None:
    """A quick disk: one interpreter has a highest rate, with any number of threads."""
    quick = {"latency": 1e-4, "bytes_per_second": 3000 * IMAGE_BYTES, "seconds": 0.5}
    limit = storage_limit([simulated(depth, cpus=1.0, **quick) for depth in DEPTHS])
    assert limit.kind == "cpu"
    assert "1 CPUs of this process" in limit.evidence


@pytest.mark.parametrize(
    ("first", "second", "eviction", "lazy"),
    [
        (0.94, 0.05, COLD, True),  # files still in S3 behind Lustre
        (0.12, 0.1, COLD, False),  # far away, not lazy
        (0.012, 0.0005, COLD, False),  # a disk, then its server's memory
        (0.9, 0.05, KEPT, None),
        (0.9, 0.0001, UNKNOWN, None),
        (0.9, 0.05, UNKNOWN, True),  # memory does not take 50 ms
        (0.06, 0.05, UNKNOWN, False),
    ],
)
def test_lazy_is_much_slower_at_first_and_slower_than_a_disk(
    first: float, second: float, eviction: Eviction, lazy: bool | None
) -> None:
    assert FirstTouch(first, second, 10, eviction).lazy is lazy
    assert FirstTouch(first, second, 4, eviction).lazy is None, "too few reads"


def test_groups_are_evicted_before_both_reads() -> None:
    """The eviction before the first read makes directories known to the kernel, but not the data."""
    done: list[str] = []

    def read(indices: Indices) -> list[bytes]:
        done.append(f"read {indices[0]}")
        return [b""]

    def evict(indices: Indices) -> Eviction:
        done.append(f"evict {indices.tolist()}")
        return COLD

    touch_twice(read, evict, iter(np.arange(3)[:, None]))
    once = ["evict [0, 1, 2]", "read 0", "read 1", "read 2"]
    assert done == once + once
    done.clear()
    touch = touch_twice(read, evict, np.arange(1000)[:, None], seconds=0)  # no time: one group is read, twice
    assert touch.num == 1
    assert done[1:] == ["read 0", "evict [0]", "read 0"]
