"""When a row is due, as Lightning decides or at the end of a short epoch, and when and where it is written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from imagenet_opt.callbacks.progress_bar import ProgressBar
from imagenet_opt.run.loggers.tensorboard_logger import TensorBoardRunLogger
from imagenet_opt.run.rows import TruncateLogs, is_logging_step, log_numbers
from tests.callbacks.conftest import AtCall, Plain, Project


@pytest.fixture
def project() -> Project:
    return Project()


class Asking(Plain):
    """Logs in every step, and keeps the steps at which the answer was yes, in the step and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.in_step: list[int] = []
        self.at_end: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.log("batch", float(len(self.seen)))
        if is_logging_step(self.trainer):
            self.in_step.append(len(self.seen))
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        if is_logging_step(self.trainer):
            self.at_end.append(len(self.seen) - 1)


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"log_every_n_steps": 5}, [4, 9, 14, 19]),
        ({"log_every_n_steps": 3}, [2, 5, 8, 11, 14, 17]),
        ({"log_every_n_steps": 1, "max_steps": 3}, [0, 1, 2]),
        ({"log_every_n_steps": 2, "accumulate_grad_batches": 3}, [5, 9, 15, 19]),
        ({"log_every_n_steps": 0}, []),
    ],
)
def test_a_batch_before_a_written_row_is_a_logging_step(options: dict[str, int], batches: list[int]) -> None:
    project, module = Project(), Asking()
    project.fit(module=module, **options)
    assert project.logger.values("batch") == batches
    assert module.in_step == module.at_end == batches


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_an_epoch_without_a_logging_step_ends_with_a_row(project: Project) -> None:
    module = Asking()
    project.fit(ProgressBar(), module=module, log_every_n_steps=12, enable_progress_bar=True)
    assert project.logger.values("batch") == module.in_step == module.at_end == [9, 11, 19]


class Diary(Callback):
    """Logs a number at each logging step, and keeps when each row arrives: the hook, the step so far, the row's."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, float]] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        step = trainer.global_step - 1
        if is_logging_step(trainer):
            log_numbers(trainer, lambda: {"step": float(step)})

    def on_row(self, trainer: Trainer, batch: int, numbers: dict[str, float]) -> None:
        assert numbers["step"] == trainer.callback_metrics["step"] == batch - 1
        where = "validation" if trainer.validating else "training"
        self.told.append((where, trainer.global_step - 1, numbers["step"]))


def test_a_row_is_written_three_steps_late_and_before_a_validation(project: Project) -> None:
    diary = Diary()
    project.fit(diary, log_every_n_steps=3, max_epochs=1)  # ten steps
    assert diary.told == [("training", 5, 2), ("training", 8, 5), ("validation", 9, 8)]
    assert [(step, row["step"], row["epoch"]) for step, row in project.logger.rows] == [(2, 2, 0), (5, 5, 0), (8, 8, 0)]


class Both(Diary):
    """Stops the fit inside a round of hooks, and logs beside the module."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        super().on_train_batch_end(trainer)
        trainer.should_stop = trainer.global_step == 8


def test_a_step_has_one_row_also_if_the_module_logs(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.fit(ProgressBar(), Both(), module=Asking(), log_every_n_steps=1, enable_progress_bar=True)
    assert [(step, row["step"], row["batch"]) for step, row in project.logger.rows] == [(i, i, i) for i in range(8)]
    assert "update_train_step_metrics" not in vars(project.trainer._logger_connector)
    assert "step 8/10" in capsys.readouterr().err


def test_a_run_that_fails_keeps_the_rows_of_its_finished_steps(project: Project) -> None:
    with pytest.raises(ZeroDivisionError):
        project.fit(Diary(), AtCall("on_train_batch_start", 9, lambda: 1 / 0), log_every_n_steps=2)
    assert [step for step, _ in project.logger.rows] == [1, 3, 5, 7]


def test_each_step_of_a_resumed_run_is_shown_once_in_tensorboard_as_it_was_logged_last(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, value in ((0, 1.0), (6, 2.0)):
        logger = TensorBoardRunLogger(save_dir=tmp_path, name="", version="")
        trainer: Any = SimpleNamespace(loggers=[logger, DummyLogger()], global_step=first)
        TruncateLogs().on_train_start(trainer, Plain())
        for step in range(first, 10):
            logger.log_metrics({"train/loss": value}, step=step)
        logger.finalize("success")
    shown = accumulator.EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [(s, 1.0 if s < 6 else 2.0) for s in range(10)]
