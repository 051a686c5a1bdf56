"""What a person reads, on a terminal and in a file."""

import re
import sys

import pytest
import torch

from callbacks.progress_bar import ProgressBar
from tests.callbacks.conftest import Plain

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Telling(Plain):
    """Logs a loss that tells its step, and an accuracy that tells its epoch."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.log("train/loss", float(self.global_step))
        self.log("throughput/data_wait_fraction", 0.25)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val/acc1", 0.5 + self.current_epoch / 10)


def test_a_file_gets_a_line_for_each_logging_step_and_validation(project, capsys: pytest.CaptureFixture[str]) -> None:
    project.fit(ProgressBar(), module=Telling(), enable_progress_bar=True, num_sanity_val_steps=2)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert lines == [
        "epoch 1/2 step 5/10  loss 4.000  wait 25%",
        "epoch 1/2 step 10/10  loss 9.000  wait 25%",
        "epoch 1/2 validated  loss 9.000  val top-1 50.0%  wait 25%",
        "epoch 2/2 step 5/10  loss 14.000  val top-1 50.0%  wait 25%",
        "epoch 2/2 step 10/10  loss 19.000  val top-1 50.0%  wait 25%",
        "epoch 2/2 validated  loss 19.000  val top-1 60.0%  wait 25%",
    ]


def test_a_terminal_gets_a_bar(project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    project.fit(ProgressBar(), module=Telling(), enable_progress_bar=True)
    captured = capsys.readouterr()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", captured.out)
    assert re.search(r"Epoch 2/2 .*10/10 .*it/s.*loss: 19.000", shown)
    assert "epoch 2" not in captured.err


def test_epochs_without_an_end_are_counted_all_the_same(project, capsys: pytest.CaptureFixture[str]) -> None:
    project.fit(ProgressBar(), module=Telling(), enable_progress_bar=True, max_epochs=-1, max_steps=20)
    assert "epoch 2 step 10/10  loss 19.000" in capsys.readouterr().err


def test_metrics_are_read_at_logging_steps_only(project) -> None:
    """Reading one makes the host wait for the GPU."""
    seen = []

    class Look(ProgressBar):
        def on_train_batch_end(self, trainer, pl_module, *arguments) -> None:
            super().on_train_batch_end(trainer, pl_module, *arguments)
            seen.append(self.get_metrics(trainer, pl_module).get("loss"))

    project.fit(Look(), module=Telling(), enable_progress_bar=True, max_epochs=1)
    assert seen == [None] * 4 + ["4.000"] * 5 + ["9.000"]
