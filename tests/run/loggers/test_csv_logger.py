"""metrics.csv: whole rows on disk at once, continued after a crash, cut back on resume."""

import csv
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagenet_opt.errors import RunFolderError
from imagenet_opt.run.loggers.csv_logger import MetricsCsv
from imagenet_opt.run.numbers import read_rows


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """The kernel's own limit on a file's size stands for the full disk: a row is written in part, then refused."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_rows_are_on_disk_at_once_share_a_step_and_new_metrics_get_a_column(tmp_path: Path) -> None:
    logger = MetricsCsv(folder=str(tmp_path))
    logger.log_metrics({"train/loss": 2.5, "epoch": 0}, step=9)
    assert rows(tmp_path) == [{"step": "9", "train/loss": "2.5", "epoch": "0"}]
    logger.log_metrics({"train/loss": 1.5, "epoch": 0}, step=19)
    assert [row["train/loss"] for row in rows(tmp_path)] == ["2.5", "1.5"]
    logger.log_metrics({"val/acc1": 0.75, "epoch": 0}, step=19)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["step,epoch,train/loss,val/acc1", "9,0,2.5,", "19,0,1.5,0.75"]


def test_a_resume_cuts_back_to_its_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = MetricsCsv(folder=str(tmp_path))
    for step in (9, 19, 29):
        first.log_metrics({"train/loss": step}, step=step)
    second = MetricsCsv(folder=str(tmp_path))
    with caplog.at_level("INFO"):
        for _ in range(2):
            second.truncate_after(19)
    assert len(caplog.messages) == 1, "only a row that is dropped is reported"
    second.log_metrics({"train/loss": 29.5}, step=29)
    assert [(row["step"], row["train/loss"]) for row in rows(tmp_path)] == [("9", "9"), ("19", "19"), ("29", "29.5")]


@pytest.mark.parametrize(
    ("garbage", "kept"),
    [
        *((line, []) for line in ("2", "29,0,0.1", "29,0,29,0.5")),  # killed before the end of the line
        *((line, []) for line in ("\0\0\0\0\n", "2,3\n", "x,1,0.5,9\n", '"9\n')),
        ("24,,2;318,0.5\n", ["24"]),  # one damaged character loses one cell
        pytest.param("9" * 5000 + ",1,0.5\n", [], id="a step of too many digits for int"),
        pytest.param("9" * 200_000 + ",1,0.5\n", [], id="a field that is too long for csv"),
    ],
)
def test_a_reopened_file_is_appended_to_and_damage_costs_a_row_at_most(
    garbage: str, kept: list[str], tmp_path: Path
) -> None:
    first = MetricsCsv(folder=str(tmp_path))
    for step in (9, 19):
        first.log_metrics({"train/loss": step, "lr": 0.5}, step=step)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write(garbage)
    second = MetricsCsv(folder=str(tmp_path))
    second.truncate_after(100)
    second.log_metrics({"train/loss": 29, "lr": 0.5}, step=29)
    assert [row["step"] for row in rows(tmp_path)] == ["9", "19", *kept, "29"]
    assert all(row["lr"] == "0.5" for row in rows(tmp_path))


def test_a_full_disk_keeps_old_rows_and_new_ones_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = MetricsCsv(folder=str(tmp_path))
    for step in (9, 19):
        logger.log_metrics({"train/loss": step / 7}, step=step)
    size = (tmp_path / "metrics.csv").stat().st_size
    with full_disk(size + 3):
        for step in (29, 39):
            logger.log_metrics({"train/loss": step / 7}, step=step)
        logger.log_metrics({"val/acc1": 0.5}, step=39)
    assert len(caplog.records) == 1
    assert [step for step, _ in read_rows(tmp_path / "metrics.csv")] == [9, 19]
    logger.log_metrics({"train/loss": 7}, step=49)
    found = read_rows(tmp_path / "metrics.csv")
    assert [step for step, _ in found] == [9, 19, 29, 39, 49]
    assert found[3][1] == {"train/loss": 39 / 7, "val/acc1": 0.5}
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_file_that_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot read .*metrics\.csv"):
        MetricsCsv(folder=str(tmp_path))
