"""The measurement of a step in a separate process, and the tables of its numbers, compiled or not."""

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
from imagenet_opt.study.kinds.anatomy import ANATOMY, Anatomy, run, seen, tables_of
from imagenet_opt.study.kinds.op_counter import Part
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, subject_of
from imagenet_opt.study.kinds.training_step import Compiled, TrainingStep, compiled
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


@pytest.fixture(autouse=True)
def work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def values(limits: Table) -> dict[str, Any]:
    return {str(row[0]): row[1] for row in limits.rows}


@pytest.mark.slow
def test_a_step_is_split_into_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch does not compile the ResNet, which would take a minute."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    overrides = (*SMALL, COMPILING, "callbacks.acceleration.compile_mode=max-autotune")
    groups, operations, limits = run(
        small_request("anatomy", Path("nowhere"), *overrides, seconds=0.2, num_operations=3)
    )
    rows = {row[0]: row[1:] for row in groups.rows}
    assert tuple(rows) == GROUPS
    assert sum(row[1] for row in rows.values()) == pytest.approx(100)
    assert sum(row[3] for row in rows.values()) == pytest.approx(100)
    assert rows["contraction"][3] > 80 and rows["optimizer"][3] > 5  # small images, but all weights
    assert all(rows[group][0] > 0 for group in ("contraction", "normalisation", "element-wise", "optimizer"))
    assert len(operations.rows) == 3
    assert operations.rows[0][3] >= operations.rows[1][3] >= operations.rows[2][3] > 0
    assert all(0 < values(limits)[f"{MFU}, {how}"] < 100 for how in ("not compiled", "compiled"))
    assert any("in the mode default" in note for note in limits.notes), "the mode on a CPU"
    assert "No GPU here" in limits.notes[-1]
    assert [len(series.y) for series in groups.plots[0].series] == [6, 6]
    assert list(tmp_path.iterdir()) == []


def test_tables_of_an_uncompiled_step() -> None:
    groups, operations, limits = tables_of(MADE_UP, 1)
    rates = [  # ms, %, GFLOP, %, GFLOP/s, GB, GB/s
        ("contraction", 250, 62.5, 1000, 80, 4000, 5, 20),
        ("normalisation", 50, 12.5, 200, 16, 4000, 4, 80),
        ("element-wise", 100, 25, 50, 4, 500, 11, 110),
    ]
    assert [row[0] for row in groups.rows] == [row[0] for row in rates]
    assert [row[1:] for row in groups.rows] == [pytest.approx(row[1:]) for row in rates]
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


def test_tables_of_a_compiled_step() -> None:
    *_, limits = tables_of(replace(MADE_UP, compiled=Compiled("max-autotune", 0.25)), 2)
    for name, before, after in (
        ("training step", 500, 250),
        ("training", 16, 32),
        ("contractions of the step", 2, 4),
        (MFU, 25, 50),
    ):
        pair = (values(limits)[f"{name}, not compiled"], values(limits)[f"{name}, compiled"])
        assert pair == pytest.approx((before, after))
    assert values(limits)["time in which no kernel runs, not compiled"] == pytest.approx(20)
    assert any("in the mode max-autotune" in note for note in limits.notes)


@pytest.mark.parametrize("compiled", [None, Compiled("default", 0.25), Compiled("default", failure="no compiler")])
def test_json_keeps_all_measurements(compiled: Compiled | None) -> None:
    anatomy = replace(MADE_UP, compiled=compiled)
    assert ANATOMY.validate_python(json.loads(json.dumps(asdict(anatomy)))) == anatomy


class OnlyCompiled(nn.Linear):
    def forward(self, images: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            raise RuntimeError("not compiled")
        return super().forward(images.flatten(1))


class Small(SyntheticStep):
    def net(self) -> nn.Module:
        return OnlyCompiled(3 * 32 * 32, 1000)


@pytest.mark.slow
def test_the_step_is_compiled_as_configured() -> None:
    """With the backend "eager", because Inductor would only add time."""
    torch._dynamo.reset()
    compiling, plain = (TrainingStep(Small(**vars(subject_of((*SMALL, *more))))) for more in ([COMPILING], []))
    assert compiling.subject.compile is not None
    compiling.subject.compile["backend"] = "eager"
    result = compiled(compiling, seconds=0.1)
    assert result is not None and result.failure is None and result.seconds and result.seconds > 0
    assert compiled(plain, seconds=0.1) is None
    with pytest.raises(RuntimeError, match="not compiled"):
        plain()


def test_a_failed_compilation_becomes_a_note() -> None:
    subject = replace(subject_of((*SMALL, COMPILING)), compile={"mode": "none such"})
    result = compiled(TrainingStep(subject), seconds=0.1)
    assert result is not None and result.seconds is None
    *_, limits = tables_of(replace(MADE_UP, compiled=result), 2)
    assert f"{MFU}, not compiled" in values(limits) and f"{MFU}, compiled" not in values(limits)
    assert any("could not be compiled" in note and "none such" in note for note in limits.notes)


def test_kernels_that_the_profiler_does_not_see_fail_the_turn() -> None:
    assert seen(0.5) == 0.5
    with pytest.raises(TurnFailed, match="the profiler saw no kernel; CUPTI needs permission"):
        seen(0.0)
