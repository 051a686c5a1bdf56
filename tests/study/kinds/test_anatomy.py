"""A step is taken apart in a process of its own; what tables make of the numbers; a step that is compiled as well."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.display.table import Table
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.telemetry.torch_profile import GROUPS, Operation
from imagenet_opt.probe.device_peak import MatmulPeak
from imagenet_opt.study.kinds.anatomy import Anatomy, anatomy_of, run, seen, tables_of
from imagenet_opt.study.kinds.module_times import Part
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, subject_of
from imagenet_opt.study.kinds.training_step import Compiled, TrainingStep, compiled
from imagenet_opt.study.request import Request
from tests.study.studies import small_request

SMALL = (
    "model.name=resnet18",
    "data.image_size=32",
    "data.batch_size=4",
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
)
COMPILING = "callbacks.acceleration.compile=true"
MFU = "model FLOPs utilisation (MFU) of the measured peak"
MADE_UP = Anatomy(
    device="a GPU",
    dtype="bfloat16",
    num_images=8,
    step_seconds=0.5,
    kernel_seconds=0.4,
    peak=MatmulPeak(8.0, 1024),
    bandwidth=200.0,
    parts=(
        Part("contraction", 0.25, 0.625, 1_000_000_000_000, 0.8, 5_000_000_000),
        Part("normalisation", 0.05, 0.125, 200_000_000_000, 0.16, 4_000_000_000),
        Part("element-wise", 0.1, 0.25, 50_000_000_000, 0.04, 11_000_000_000),
    ),
    operations=(
        Operation("conv", "contraction", seconds=0.25, num_calls=3),
        Operation("relu", "element-wise", seconds=0.1, num_calls=2),
        Operation("batch_norm", "normalisation", seconds=0.05, num_calls=1),
    ),
    compiled=None,
)


def request(*overrides: str, **options: Any) -> Request:
    return small_request("anatomy", Path("nowhere"), *SMALL, *overrides, seconds=0.2, **options)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_step_is_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResNet takes a minute to compile: here torch leaves it as it is."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    compiling = (COMPILING, "callbacks.acceleration.compile_mode=max-autotune")
    groups, operations, limits = run(request(*compiling, num_operations=3))
    rows = {row[0]: row[1:] for row in groups.rows}
    assert tuple(rows) == GROUPS
    assert sum(row[1] for row in rows.values()) == pytest.approx(100)
    assert sum(row[3] for row in rows.values()) == pytest.approx(100)
    assert rows["contraction"][3] > 80 and rows["optimizer"][3] > 5  # small images, and as many weights as ever
    assert all(rows[group][0] > 0 for group in ("contraction", "normalisation", "element-wise", "optimizer"))
    assert len(operations.rows) == 3
    assert operations.rows[0][3] >= operations.rows[1][3] >= operations.rows[2][3] > 0
    assert all(0 < values(limits)[f"{MFU}, {how}"] < 100 for how in ("not compiled", "compiled"))
    assert any("in the mode default" in note for note in limits.notes), "which it is on a CPU"
    assert "No GPU here" in limits.notes[-1]
    assert [len(series.y) for series in groups.plots[0].series] == [6, 6]
    assert list(tmp_path.iterdir()) == []


def values(limits: Table) -> dict[str, Any]:
    return {str(row[0]): row[1] for row in limits.rows}


def test_what_the_tables_make_of_the_numbers() -> None:
    groups, operations, limits = tables_of(MADE_UP, 1)
    assert [row[0] for row in groups.rows] == ["contraction", "normalisation", "element-wise"]
    for row, expected in zip(
        groups.rows,
        [
            (250, 62.5, 1000, 80, 4000, 5, 20),  # ms, %, GFLOP, %, GFLOP/s, GB, GB/s
            (50, 12.5, 200, 16, 4000, 4, 80),
            (100, 25, 50, 4, 500, 11, 110),
        ],
        strict=True,
    ):
        assert row[1:] == pytest.approx(expected)
    assert operations.rows == (("conv", "contraction", 3, 250, pytest.approx(62.5)),)
    assert operations.notes == ("2 others are shorter.",)
    assert values(limits) == pytest.approx(
        {
            "training step": 500,
            "training": 16,
            "contractions of the step": 2,
            MFU: 25,
            "measured peak, bfloat16, 1024 x 1024": 8,
            "measured memory bandwidth": 200,
            "time in which no kernel runs": 20,
        }
    )
    assert "37.5 % of the time and move 100.0 GB/s or more, 50 % of the memory's bandwidth" in " ".join(limits.notes)


def test_a_compiled_step_stands_beside_the_other() -> None:
    *_, limits = tables_of(replace(MADE_UP, compiled=Compiled("max-autotune", 0.25)), 2)
    found = values(limits)
    for name, before, after in (
        ("training step", 500, 250),
        ("training", 16, 32),
        ("contractions of the step", 2, 4),
        (MFU, 25, 50),
    ):
        assert (found[f"{name}, not compiled"], found[f"{name}, compiled"]) == pytest.approx((before, after))
    assert found["time in which no kernel runs, not compiled"] == pytest.approx(20)
    assert any("in the mode max-autotune" in note for note in limits.notes)


@pytest.mark.parametrize("found", [None, Compiled("default", 0.25), Compiled("default", failure="no compiler")])
def test_another_process_tells_all_of_it(found: Compiled | None) -> None:
    whole = replace(MADE_UP, compiled=found)
    assert anatomy_of(json.loads(json.dumps(asdict(whole)))) == whole


class OnlyCompiled(nn.Linear):
    def forward(self, images: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            raise RuntimeError("not compiled")
        return super().forward(images.flatten(1))


class Small(SyntheticStep):
    def net(self) -> nn.Module:
        return OnlyCompiled(3 * 32 * 32, 1000)


@pytest.mark.slow
def test_the_step_is_compiled_where_training_compiles(checked: None) -> None:
    """Without Inductor, which would only make it faster."""
    torch._dynamo.reset()
    compiling, plain = (TrainingStep(Small(**vars(subject_of((*SMALL, *more))))) for more in ([COMPILING], []))
    assert compiling.subject.compile is not None
    compiling.subject.compile["backend"] = "eager"
    found = compiled(compiling, seconds=0.1)
    assert found is not None and found.failure is None and found.seconds and found.seconds > 0
    assert compiled(plain, seconds=0.1) is None
    with pytest.raises(RuntimeError, match="not compiled"):
        plain()


def test_what_cannot_be_compiled_is_told_beside_all_else(checked: None) -> None:
    subject = replace(subject_of((*SMALL, COMPILING)), compile={"mode": "none such"})
    found = compiled(TrainingStep(subject), seconds=0.1)
    assert found is not None and found.seconds is None
    *_, limits = tables_of(replace(MADE_UP, compiled=found), 2)
    assert f"{MFU}, not compiled" in values(limits) and f"{MFU}, compiled" not in values(limits)
    assert any("could not be compiled" in note and "none such" in note for note in limits.notes)


def test_a_profiler_that_may_not_see_kernels_is_told() -> None:
    assert seen(0.5) == 0.5
    with pytest.raises(TurnFailed, match="the profiler saw no kernel; CUPTI needs permission"):
        seen(0.0)
