"""Tables: their cells, and outputs that are a log, as of jobs of a CI service and of terminals without a cursor."""

import io
import math
import sys

import pytest

from imagenet_opt.display import progress
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import print_tables


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"TERM": "dumb"}])
def test_a_terminal_that_keeps_all_lines_has_plain_lines(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | variables).items():
        monkeypatch.setenv(name, value)
    with progress.announced(1) as announce:
        announce("reading")
    print_tables([Table("rates", (Column("images/s"),), ((7.0,),))])
    assert err.getvalue() == "measuring: reading\n"
    assert not {"\x1b", "\r"} & set(out.getvalue()) and "images/s" in out.getvalue()


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
