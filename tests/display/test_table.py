import math

import pytest

from imagenet_opt.display.table import Column, Table, interval, ratio_interval, series, shape_of
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.measure.stats.verdict import Ratio


def test_cells_are_shown_as_their_column_says_and_markdown_stays_a_table() -> None:
    columns = (Column("step"), Column("images/s", "{:,.0f}"))
    table = Table("A study", columns, (("a | b", 1234.5), ("c", None), ("d", math.nan), ("e", "failed")), ("Said.",))
    assert table.texts() == [["a | b", "1,234"], ["c", "-"], ["d", "-"], ["e", "failed"]]
    assert table.markdown().splitlines() == [
        "### A study",
        "",
        "| step | images/s |",
        "|---|---|",
        "| a \\| b | 1,234 |",
        "| c | - |",
        "| d | - |",
        "| e | failed |",
        "",
        "Said.",
    ]


def test_intervals_in_cells_and_plots() -> None:
    estimate = median_interval([1.0, 2.0, 4.0])
    assert interval(estimate, "{:.1f}") == "1.0-4.0"
    assert interval(median_interval([1.0]), "{:.1f}") is None
    curve = series("one", {8.0: estimate})
    assert (curve.x, curve.y, curve.low, curve.high) == ((8.0,), (2.0,), (1.0,), (4.0,))


def test_a_ratio_in_cells() -> None:
    assert ratio_interval(Ratio(0.9, 0.85, 0.95, 0.95)) == "0.85-0.95"
    assert ratio_interval(Ratio(2.0, 0.0, math.inf, 0.0)) is None
    assert ratio_interval(Ratio(1.37, 0.002, 933.88, 0.95)) == "0.00 to over 100"


@pytest.mark.parametrize("values, shown", [([0.0341, 2.0], "0.034"), ([5.24], "5.2"), ([12.4, 1e4], "12")])
def test_the_smallest_value_of_a_column_has_two_digits(values: list[float], shown: str) -> None:
    assert shape_of(values).format(values[0]) == shown
