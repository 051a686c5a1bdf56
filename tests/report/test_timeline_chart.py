"""The timeline figure keeps the peaks in fewer points."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from imagenet_opt.report.timeline_chart import min_max


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=1, max_size=500), st.integers(2, 100))
def test_maximum_and_minimum_stay(values: list[float], most: int) -> None:
    xs, ys = min_max(np.arange(len(values)), values, most=most)
    if not np.isnan(values).all():
        assert np.nanmax(ys) == np.nanmax(values) and np.nanmin(ys) == np.nanmin(values)
    assert len(xs) <= max(most, 2)
    assert (np.diff(xs) > 0).all()
    np.testing.assert_array_equal(ys, np.array(values)[xs.astype(int)])
