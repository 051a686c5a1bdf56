"""First against second reads of simulated storages."""

import numpy as np
import pytest

from imagenet_opt.doctor.first_touch import is_lazy, touch_twice
from imagenet_opt.measure.storage.page_cache import Eviction, Residency
from imagenet_opt.measure.storage.read_depths import Indices

COLD = Eviction(Residency(0.0, "mincore"), 10)
KEPT = Eviction(Residency(1.0, "mincore"), 10)
UNKNOWN = Eviction(Residency(None, "no right to ask"), 10)


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
    assert is_lazy(first, second, 10, eviction) is lazy
    assert is_lazy(first, second, 4, eviction) is None, "too few reads"


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
    assert "of 1 requests" in touch.evidence
    assert done[1:] == ["read 0", "evict [0]", "read 0"]
