import math

from imagenet_opt.display.table import Column, Table


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
