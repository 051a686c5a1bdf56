"""Fewer points, the same peaks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from imagenet_opt.report.downsample import min_max


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(2, 100))
def test_maximum_and_minimum_stay(values: list[float], most: int) -> None:
    xs, ys = min_max(np.arange(len(values)), values, most=most)
    assert ys.max() == max(values) and ys.min() == min(values)
    assert len(xs) <= max(most, 2)
    assert (np.diff(xs) > 0).all()
    assert all(values[int(x)] == y for x, y in zip(xs, ys, strict=True))


def test_a_single_sample_survives_an_hour() -> None:
    values = np.zeros(36_000)
    values[12_345] = 7
    xs, ys = min_max(np.arange(36_000) / 10, values, most=1000)
    assert xs[ys.argmax()] == 1234.5
    assert len(xs) <= 1000


def test_a_gap_stays_a_gap() -> None:
    values = np.ones(1000)
    values[300:700] = np.nan
    xs, ys = min_max(np.arange(1000), values, most=100)
    assert np.isnan(ys[(xs > 310) & (xs < 690)]).all()
    assert np.isfinite(ys[(xs < 290) | (xs > 710)]).all()
