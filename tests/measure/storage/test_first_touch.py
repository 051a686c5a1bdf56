"""First against second touch: the rule, and the order of what is done."""

import numpy as np
import pytest

from imagenet_opt.measure.storage.first_touch import FirstTouch, touch_twice
from imagenet_opt.measure.storage.page_cache import Eviction, Residency
from imagenet_opt.measure.storage.read_depths import Indices

COLD = Eviction(Residency(0.0, "cachestat"), 10)


@pytest.mark.parametrize(
    ("first", "second", "lazy"),
    [
        (0.94, 0.05, True),  # files still in S3 behind Lustre
        (0.33, 0.1, True),
        (0.12, 0.1, False),  # far away, not lazy
        (0.25, 0.1, False),
        (0.012, 0.0005, False),  # a disk, then its server's memory
        (0.0001, 0.0001, False),
    ],
)
def test_lazy_is_much_slower_and_slower_than_a_disk(first: float, second: float, lazy: bool) -> None:
    assert FirstTouch((first,) * 9 + (30.0,), (second,) * 10, COLD).lazy is lazy


def test_no_verdict_from_memory_or_few_files() -> None:
    kept = Eviction(Residency(1.0, "cachestat"), 10)
    unknown = Eviction(Residency(None, "no right to ask"), 10)
    assert FirstTouch((0.9,) * 10, (0.0001,) * 10, kept).lazy is None
    assert FirstTouch((0.9,) * 10, (0.0001,) * 10, unknown).lazy is None
    assert FirstTouch((0.9,) * 10, (0.05,) * 10, kept).lazy is None
    assert FirstTouch((0.9,) * 10, (0.05,) * 10, unknown).lazy is True, "no memory takes 50 ms"
    assert FirstTouch((0.06,) * 10, (0.05,) * 10, unknown).lazy is False
    assert FirstTouch((0.9,) * 4, (0.0001,) * 4, COLD).lazy is None


def test_evidence_has_the_numbers() -> None:
    assert FirstTouch((0.33,) * 10, (0.1,) * 10, COLD).evidence == (
        "first touch 330 ms, second 100 ms, medians of 10 requests; "
        "eviction between them verified: 0.0% of 10 files is still in memory (cachestat)"
    )


def test_evicted_before_either_touch() -> None:
    """Before the first too, which makes directories known and leaves the data where it was."""
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
    found = touch_twice(read, evict, np.arange(1000)[:, None], seconds=0)  # no time: one is read, twice
    assert len(found.first_seconds) == len(found.second_seconds) == 1
    assert done[1:] == ["read 0", "evict [0]", "read 0"]
