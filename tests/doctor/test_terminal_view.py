"""A diagnosis on terminals of several widths, and in a pipe."""

import io

import pytest
from rich.console import Console

from imagenet_opt.doctor.measurements import STAGES
from imagenet_opt.doctor.terminal_view import print_diagnosis
from tests.doctor.diagnoses import QUIET, make_diagnosis


def printed(width: int, encoding: str = "utf-8", **changes: object) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_diagnosis(make_diagnosis(**changes), Console(file=file, width=width, markup=False, highlight=False))
    file.seek(0)
    return file.read()


@pytest.mark.parametrize("width", [80, 110])
def test_all_lines_fit(width: int) -> None:
    text = printed(width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text and "\x1b" not in text
    assert all(name in text for name in STAGES.values())
    assert "imagenet-opt pack data.root=/fsx/imagenet out=/nvme/imagenet" in text


def test_the_remedy_of_the_cause_comes_first_and_an_unpredictable_gain_is_named() -> None:
    text = printed(100, cause="read-ahead", next_gain=None, next_stage=None)
    assert text.index("evidence") < text.index("* files one by one") and "* read-ahead" not in text
    assert "if fixed gain not predictable" in " ".join(text.split())
    healthy = printed(80, cause="healthy", next_stage=None, next_gain=None, findings=(QUIET,))
    assert "if fixed" not in healthy


def test_a_simulation_is_named_control_characters_are_visible_and_a_terminal_without_unicode_gets_ascii() -> None:
    changes = {"simulated": "a10g", "profile": "900 images/s (estimate); source: nobody", "sentence": "\x1b[31mred"}
    text = printed(80, encoding="ascii", **changes)
    assert "simulated: a10g" in text and "(estimate); source: nobody" in text
    assert "\\x1b[31m" in text and "----" in text and "0.83 it/s" in text
