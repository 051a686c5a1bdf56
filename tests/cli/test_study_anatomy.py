"""A step is taken apart in a process of its own, and its tables agree with each other."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.cli.study_anatomy import run, seen
from imagenet_opt.cli.study_request import Request
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.interleave import TurnFailed
from imagenet_opt.measure.operations import GROUPS
from tests.cli.studies import small_request

SMALL = (
    "model.name=resnet18",
    "data.image_size=32",
    "data.batch_size=4",
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
)


def request(*overrides: str, **options: Any) -> Request:
    return small_request("anatomy", Path("nowhere"), *SMALL, *overrides, seconds=0.2, **options)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_step_is_taken_apart(tmp_path: Path) -> None:
    groups, operations, limits = run(request(num_operations=3))
    rows = {row[0]: row[1:] for row in groups.rows}
    assert tuple(rows) == GROUPS
    assert sum(row[1] for row in rows.values()) == pytest.approx(100)
    assert sum(row[3] for row in rows.values()) == pytest.approx(100)
    assert rows["contraction"][3] > 80 and rows["optimizer"][3] > 5  # small images, and as many weights as ever
    assert all(rows[group][0] > 0 for group in ("contraction", "normalisation", "element-wise", "optimizer"))
    assert len(operations.rows) == 3
    assert operations.rows[0][3] >= operations.rows[1][3] >= operations.rows[2][3] > 0
    values = {row[0]: row[1] for row in limits.rows}
    step_ms, achieved = values["training step"], values["contractions of the step"]
    assert values["training"] == pytest.approx(4 / step_ms * 1000)
    assert achieved == pytest.approx(rows["contraction"][2] / step_ms)  # GFLOP a ms are TFLOP a second
    peak = next(value for name, value in values.items() if name.startswith("measured peak"))
    assert values["model FLOPs utilisation (MFU) of that peak"] == pytest.approx(100 * achieved / peak)
    assert "No GPU here" in limits.notes[-1]
    assert [len(series.y) for series in groups.plots[0].series] == [6, 6]
    assert list(tmp_path.iterdir()) == []


def test_unknown_keys_of_the_study_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"study=anatomy: num_stepps"):
        run(request(num_stepps=3))


def test_a_profiler_that_may_not_see_kernels_is_told() -> None:
    assert seen(0.5) == 0.5
    with pytest.raises(TurnFailed, match="the profiler saw no kernel; CUPTI needs permission"):
        seen(0.0)
