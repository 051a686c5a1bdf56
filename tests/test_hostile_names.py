"""Hostile file and class names become neither markup nor terminal commands."""

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from imagenet_opt.display.printable import printable
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import print_tables
from imagenet_opt.doctor.terminal_view import print_diagnosis
from imagenet_opt.errors import EmptyClass
from imagenet_opt.sweep.results import print_results, write_page
from imagenet_opt.sweep.rows import SweepRow
from imagenet_opt.training.summary import print_summary
from tests.cli.reports import Page
from tests.doctor.diagnoses import make_diagnosis
from tests.training.test_summary import trainer

HOSTILE = (
    "</td><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & [red]bold[/red] \x1b]0;owned\x07\x1b[31m {{7*7}}"
)


def rows(text: str) -> list[SweepRow]:
    def row(i: int, status: str) -> SweepRow:
        word = f"name{text}={i}{text}"
        return SweepRow(
            job=i,
            overrides=[word],
            status=status,  # type: ignore[arg-type]
            error=text if status == "failed" else None,
            seconds=1.0,
            exit_code=0,
            summary={"throughput/images_per_second": 3.0 + i, f"metric{text}": text},
        )

    return [row(0, "ok"), row(1, "ok"), row(2, "failed")]


def test_names_add_no_elements_to_the_page_of_a_sweep(tmp_path: Path) -> None:
    pages = []
    for text in (HOSTILE, "harmless"):
        folder = tmp_path / text.replace("/", "")
        folder.mkdir()
        write_page(rows(text), folder)
        pages.append(Page((folder / "sweep.html").read_text()))
    hostile, harmless = pages
    assert hostile.elements == harmless.elements
    assert any(HOSTILE.partition(" \x1b")[0] in text for text in "".join(hostile.words).splitlines())
    assert "49" not in [text.strip() for text in hostile.words]


def test_names_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_results(rows(HOSTILE), tmp_path / "sweep\x1b[2J")
    shown = capsys.readouterr().out
    assert "\x1b]" not in shown and "\x07" not in shown and "\x1b[2J" not in shown and "\x1b[31m" not in shown
    assert "[red]" in shown.replace("\n", "") and r"sweep\x1b[2J" in shown

    lines = Table("a\nb", (Column("class"),), (("c\nConfigError: fake",),))
    print_tables([lines])
    assert not any(line.startswith(("b", "ConfigError")) for line in capsys.readouterr().out.splitlines())

    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")  # a terminal without Unicode
    print_diagnosis(make_diagnosis(simulated="a10g", sentence=HOSTILE), Console(file=file, width=80, markup=False))
    file.seek(0)
    assert "simulated: a10g" in (shown := file.read()) and r"\x1b" in shown and "\x1b" not in shown

    print_summary({}, Path("[red]run[/red]\x1b[2J"), trainer(), done_steps=0)
    assert r"[red]run[/red]\x1b[2J" in capsys.readouterr().out.replace("\n", "")


def test_errors_and_log_lines_are_printable_and_stay_readable(caplog: pytest.LogCaptureFixture) -> None:
    assert str(EmptyClass(f"no images in {HOSTILE}\n  put \u202egpj.exe there")).isprintable()
    logging.getLogger("imagenet_opt.callbacks.any").warning("skipped: %s", "/d/\x1b[2J\nConfigError: fake \udcff")
    assert caplog.messages == [r"skipped: /d/\x1b[2J\nConfigError: fake \xff"]
    assert printable("100 % of it\n\tis well") == "100 % of it\n\tis well"
