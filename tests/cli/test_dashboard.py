"""The charts of the workspace against the metrics that a run really logs."""

import csv
from pathlib import Path

import pytest

from imagenet_opt.cli.dashboard import SECTIONS, axis, main
from imagenet_opt.errors import ConfigError


def test_every_chart_of_a_run_without_a_gpu_has_numbers(tmp_path: Path, images_root: Path) -> None:
    from tests.test_train import train

    done = train(
        tmp_path / "run", images_root, "trainer.max_epochs=1", "callbacks.host_utilization.interval_seconds=0.02"
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run/metrics.csv").open() as file:
        logged = set(next(csv.reader(file)))
    drawn = {metric for metrics in SECTIONS.values() for metric in metrics}
    assert {metric for metric in drawn if not metric.startswith("gpu/")} <= logged


def test_each_chart_has_the_axis_that_its_numbers_come_by(capsys: pytest.CaptureFixture[str]) -> None:
    assert {axis("val/acc1"), axis("throughput/epoch_seconds")} == {"epoch"}
    assert {axis("train/loss"), axis("throughput/it_per_second")} == {"trainer/global_step"}
    main(["--dry-run"])
    assert "  val/acc1 by epoch" in capsys.readouterr().out


def test_a_workspace_needs_an_owner() -> None:
    with pytest.raises(ConfigError, match="--entity"):
        main([])
