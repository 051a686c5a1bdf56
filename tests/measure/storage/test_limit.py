"""What bounds a storage: storages of known latency and bandwidth."""

from dataclasses import replace

import pytest
from numpy.testing import assert_allclose

from imagenet_opt.measure.storage.limit import mixed_rate, storage_limit
from tests.measure.storage.test_read_depths import IMAGE_BYTES, simulated

DEPTHS = (1, 4, 16, 64, 256)


def test_latency_alone() -> None:
    found = storage_limit([simulated(depth, latency=0.1) for depth in DEPTHS])
    assert found.kind == "latency"
    assert_allclose([found.images_per_second, found.latency, found.knee], [2560, 0.1, 256])
    assert found.evidence.startswith("256 requests in flight read 256 times as fast as 1, 2560 images/s = 282 MB/s")


@pytest.mark.parametrize("images", [1, 12])
def test_bandwidth_from_the_knee_on(images: int) -> None:
    """So many in flight as fill the line: (latency + transfer) / transfer."""
    curve = [simulated(depth, latency=0.1, bytes_per_second=20e6, images=images, seconds=20) for depth in DEPTHS]
    found = storage_limit(curve[::-1])
    assert found.kind == "bandwidth"
    assert_allclose(found.megabytes_per_second, 20, rtol=0.02)
    transfer = images * IMAGE_BYTES / 20e6
    assert_allclose(found.knee, (0.1 + transfer) / transfer, rtol=0.02)
    assert found.at(found.knee / 2) == "latency"
    assert found.at(2 * found.knee) == "bandwidth"
    assert "read no faster than" in found.evidence


def test_a_bandwidth_that_is_not_reached_is_no_limit() -> None:
    curve = [simulated(depth, latency=0.1, bytes_per_second=400e6) for depth in DEPTHS]
    assert storage_limit(curve).kind == "latency"
    assert storage_limit(curve).at(10_000) == "latency"


def test_a_moment_in_which_the_storage_stalls_does_not_make_its_bandwidth_a_latency() -> None:
    """Just then one request in flight brought a tenth of what it brings."""
    alone, *deeper = [simulated(depth, latency=0.01, bytes_per_second=12e6, seconds=20) for depth in DEPTHS]
    stalled = replace(alone, windows=tuple(rate / 50 for rate in alone.windows))
    found = storage_limit([stalled, *deeper])
    assert found.kind == "bandwidth" and found.at(64) == "bandwidth"


def test_late_answers_are_latency() -> None:
    assert storage_limit([simulated(depth, latency=0.02, every=50, late=0.5) for depth in DEPTHS]).kind == "latency"


def test_a_reader_out_of_cpu_is_not_a_slow_storage() -> None:
    """A quick disk: one interpreter reads no more than it can, however many threads it has."""
    quick = {"latency": 1e-4, "bytes_per_second": 3000 * IMAGE_BYTES, "seconds": 0.5}
    found = storage_limit([simulated(depth, cpus=1.0, **quick) for depth in DEPTHS])
    assert found.kind == "cpu"
    assert "1 CPUs of this process" in found.evidence


def test_one_depth_tells_nothing() -> None:
    with pytest.raises(ValueError, match="at least two"):
        storage_limit([simulated(4, latency=0.1)])


@pytest.mark.parametrize(("share", "rate"), [(0, 50), (1, 2000), (0.5, 97.56), (0.9, 408.2)])
def test_times_add_up_not_rates(share: float, rate: float) -> None:
    """0.5: 1000 images are 500 / 2000 + 500 / 50 s."""
    assert_allclose(mixed_rate(share, 2000, 50), rate, rtol=1e-3)
