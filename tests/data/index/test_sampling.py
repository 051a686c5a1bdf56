"""Samples of all classes alike."""

import numpy as np

from imagenet_opt.data.index.subset import spread_over_classes

LABELS = np.repeat(np.arange(4, dtype=np.int32), [100, 3, 50, 100])


def test_classes_are_drawn_alike_and_small_ones_leave_their_share() -> None:
    rows = spread_over_classes(LABELS, 40)
    counts = np.bincount(LABELS[rows]).tolist()
    assert counts[1] == 3 and sum(counts) == 40 and max(counts) - min(counts[0], *counts[2:]) <= 1
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(rows, spread_over_classes(LABELS, 40))
    assert set(rows) != set(spread_over_classes(LABELS, 40, seed=1))


def test_more_samples_than_exist_are_all_samples() -> None:
    np.testing.assert_array_equal(spread_over_classes(LABELS, 1000), np.arange(253))
