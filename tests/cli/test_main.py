"""The program: a closed pipe, and mistakes that need no import of torch."""

import subprocess
import sys

import pytest

from imagenet_opt.config.compose import composed


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-m", "imagenet_opt.cli.main", "plan", "--help"], ["train.py", "--help"]])
def test_a_reader_that_stops_reading_ends_the_command_without_a_traceback(words: list[str]) -> None:
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


MISTAKES = ("check", "hydrate", "check data.root=/nowhere", "plan data.root=/nowhere", "plan model.max_grad_norm=abc")
MODULES = ("cli.pack", "cli.export", "cli.dashboard", "cli.mistakes", "config.dataset", "sweep.job")
FIRST = f"""
import sys, {", ".join(f"imagenet_opt.{module}" for module in MODULES)}
from imagenet_opt.cli.main import run
from imagenet_opt.errors import ImagenetOptError
for line in {MISTAKES}:
    try:
        run(line.split()[0], line.split()[1:])
    except ImagenetOptError:
        print(*{{"torch", "timm", "lightning", "wandb"}} & sys.modules.keys(), ".")
"""


def test_mistakes_in_names_numbers_and_places_import_no_heavy_module() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["."] * len(MISTAKES), "")


def test_a_callback_that_is_null_is_left_out() -> None:
    assert "checkpoint" not in composed(("data=demo", "callbacks.checkpoint=null")).callbacks
