"""The charts of the workspace; tests/test_train.py compares them with the metrics of a run."""

import pytest

from imagenet_opt.cli.dashboard import axis, main
from imagenet_opt.errors import ConfigError


def test_each_chart_has_the_axis_of_its_metric(capsys: pytest.CaptureFixture[str]) -> None:
    assert {axis("val/acc1"), axis("throughput/epoch_seconds")} == {"epoch"}
    assert {axis("train/loss"), axis("throughput/it_per_second")} == {"trainer/global_step"}
    main(["--dry-run"])
    assert "  val/acc1 by epoch" in capsys.readouterr().out


def test_a_workspace_needs_an_owner() -> None:
    with pytest.raises(ConfigError, match="--entity is missing"):
        main([])
