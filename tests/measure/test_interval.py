import math

from imagenet_opt.measure.blocks import Ratio
from imagenet_opt.measure.interval import interval, ratio_cells, series
from imagenet_opt.measure.statistics import median_interval


def test_intervals_in_cells_and_plots() -> None:
    some = median_interval([1.0, 2.0, 4.0])
    assert interval(some, "{:.1f}") == "1.0-4.0"
    assert interval(median_interval([1.0]), "{:.1f}") is None
    curve = series("one", {8.0: some})
    assert (curve.x, curve.y, curve.low, curve.high) == ((8.0,), (2.0,), (1.0,), (4.0,))


def test_a_ratio_in_cells() -> None:
    assert ratio_cells(Ratio(0.9, 0.85, 0.95, 0.95), "{:.0%}") == (0.9, "85%-95%", "slower")
    assert ratio_cells(Ratio(2.0, 0.0, math.inf, 0.0)) == (2.0, None, "undecided")
    assert ratio_cells(None) == (None, None, None)
