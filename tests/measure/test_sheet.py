import math

import pytest

from imagenet_opt.measure.sheet import Column, Sheet


def test_cells_are_shown_as_their_column_says_and_markdown_stays_a_table() -> None:
    columns = (Column("step"), Column("images/s", "{:,.0f}"))
    sheet = Sheet("A study", columns, (("a | b", 1234.5), ("c", None), ("d", math.nan), ("e", "failed")), ("Said.",))
    assert sheet.texts() == [["a | b", "1,234"], ["c", "-"], ["d", "-"], ["e", "failed"]]
    assert sheet.markdown().splitlines() == [
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


def test_two_columns_never_have_the_same_heading() -> None:
    with pytest.raises(ValueError, match="A study: headings must differ"):
        Sheet("A study", (Column("interval"), Column("interval")), ())
