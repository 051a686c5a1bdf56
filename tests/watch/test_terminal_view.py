"""What the terminal shows of a run."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from imagenet_opt.run.loggers.metrics_csv import MetricsCsv
from imagenet_opt.watch.numbers import series
from imagenet_opt.watch.run_folder import read_snapshot
from imagenet_opt.watch.terminal_view import CHARTS, view
from tests.watch.runs import training, write_run


def shown(folder: Path, *, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(view(read_snapshot(folder), width=width, height=height))
    return captured.get().splitlines()


def test_80_columns_and_24_lines_hold_the_newest_value_of_each_number(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    with training(folder):
        lines = shown(folder)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for words in (
        "mine: The run trains.", "step 300", "epoch 3/8", "time left 1:20:32", "it/s 2.50", "images/s 1,234",
        "data wait 25.6%", "GPU busy 88 %", "loss 2.710", "top-1 12.9%", "validation loss 2.125",
        "validation top-1 43.8%", "learning rate 0.0123",
    ):  # fmt: skip
        assert words in text, words
    assert all(title in text for title in CHARTS)
    assert re.search(r"3\.00┤.*\n", "\n".join(lines)), "the loss of the first row is the top of its chart"


def test_a_run_without_a_row_says_when_the_first_comes(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,epoch\n")
    assert any("trainer.log_every_n_steps" in line for line in shown(tmp_path))


def test_a_name_with_control_characters_cannot_command_the_terminal(tmp_path: Path) -> None:
    lines = shown(write_run(tmp_path / "a\x1b[2Jb"))
    assert "\x1b" not in "".join(lines) and "a\\x1b[2Jb" in lines[0]


@pytest.mark.parametrize("resumed_after", [4, 9])
def test_a_resumed_run_is_one_run(resumed_after: int, tmp_path: Path) -> None:
    for first in (0, resumed_after + 1):
        logger = MetricsCsv(folder=str(tmp_path))
        logger.truncate_after(first - 1)
        for step in range(first, 10 if first == 0 else 20):
            logger.log_metrics({"train/loss": 100.0 * first + step}, step)
    steps, losses = series(read_snapshot(tmp_path).rows, "train/loss")
    assert steps == list(range(20))
    assert losses == [step if step <= resumed_after else 100 * (resumed_after + 1) + step for step in steps]
