"""A diagnosis on a terminal."""

import io

from rich.console import Console

from imagenet_opt.doctor.terminal_view import print_diagnosis
from tests.doctor.diagnoses import make_diagnosis


def printed(width: int, encoding: str = "utf-8", **changes: object) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_diagnosis(make_diagnosis(**changes), Console(file=file, width=width, markup=False, highlight=False))
    file.seek(0)
    return file.read()


def test_a_simulation_is_named_control_characters_are_visible_and_a_terminal_without_unicode_gets_ascii() -> None:
    changes = {"simulated": "a10g", "profile": "900 images/s (estimate); source: nobody", "sentence": "\x1b[31mred"}
    text = printed(80, encoding="ascii", **changes)
    assert "simulated: a10g" in text and "(estimate); source: nobody" in text
    assert "\\x1b[31m" in text and "----" in text and "0.83 it/s" in text
