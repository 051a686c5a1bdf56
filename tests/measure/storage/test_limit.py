"""Limits of simulated storages with known latency and bandwidth."""

from dataclasses import replace

import pytest
from numpy.testing import assert_allclose

from imagenet_opt.measure.storage.limit import storage_limit
from tests.measure.storage.test_read_depths import IMAGE_BYTES, simulated

DEPTHS = (1, 4, 16, 64, 256)


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
    "options", [{"latency": 0.1, "bytes_per_second": 400e6}, {"latency": 0.02, "every": 50, "late": 0.5}]
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
