"""What a person reads, on a terminal and in a file."""

import itertools
import logging
import math
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from imagenet_opt.callbacks import progress_bar
from imagenet_opt.callbacks.progress_bar import ProgressBar, seconds_left
from tests.callbacks.conftest import Plain


class Telling(Plain):
    """Logs a loss that tells its step, and an accuracy that tells its epoch."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.log("train/loss", float(self.global_step))
        self.log("train/acc1", math.nan)
        self.log("throughput/data_wait_fraction", 0.25)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log_dict({"val/loss": 0.71, "val/acc1": 0.5 + self.current_epoch / 10})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every validation takes 30 seconds; the process has had 2.1 GiB."""
    ticks = itertools.count(step=30.0)
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(progress_bar, "peak_gib", lambda device: 2.1)


LINES = """\
epoch 1/2  step 5/10  loss 4.000  data wait 25%  2.1 GiB
epoch 1/2  step 10/10  loss 9.000  data wait 25%  2.1 GiB
epoch 1/2  val  loss 0.710  acc1 50.0%  30.0 s
epoch 2/2  step 5/10  loss 14.000  data wait 25%  2.1 GiB
epoch 2/2  step 10/10  loss 19.000  data wait 25%  2.1 GiB
epoch 2/2  val  loss 0.710  acc1 60.0%  30.0 s""".splitlines()


@pytest.mark.usefixtures("clock")
def test_a_file_gets_a_line_for_each_logging_step_and_validation(
    project, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ends = {"num_sanity_val_steps": 2, "max_epochs": 9, "max_steps": 20}
    with caplog.at_level(logging.INFO, "imagenet_opt.callbacks"):
        project.fit(ProgressBar(), module=Telling(), enable_progress_bar=True, **ends)
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")] == LINES
    assert [record.message for record in caplog.records if record.name == progress_bar.__name__] == LINES


def test_a_terminal_gets_a_bar_of_one_line(
    project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "160", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    project.fit(ProgressBar(), module=Telling(), enable_progress_bar=True)
    captured = capsys.readouterr()
    assert not re.search(r"\x1b\[[0-9;]*m", captured.out)
    out = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", captured.out)
    assert re.search(r"Epoch 2/2 .*10/10 .*it/s.*loss: 19.000", out)
    assert out.count("epoch 2/2  val  loss 0.710  acc1 60.0%  ") == 1 and "epoch 2" not in captured.err


@pytest.mark.parametrize(("total", "rate", "left"), [(400, 2.0, 450.0), (math.inf, 2.0, None), (400, math.nan, None)])
def test_the_time_left_is_that_of_the_batches_that_are_left(total: float, rate: float, left: float | None) -> None:
    fit = SimpleNamespace(estimated_stepping_batches=total, accumulate_grad_batches=3, global_step=100)
    assert seconds_left(fit, rate) == left
