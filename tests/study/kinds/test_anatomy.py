"""The kinds of operations of a step, and its FLOPs beside the peak."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.measure.telemetry.torch_profile import GROUPS
from imagenet_opt.probe import device_peak
from imagenet_opt.probe.device_peak import MatmulPeak
from imagenet_opt.study.kinds.anatomy import Anatomy, kinds_table
from tests.study.studies import TINY, table_of


def test_a_step_is_split_into_kinds_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_peak.SIZES, "cpu", (512,))
    words = (*TINY, "trainer.accelerator=cpu")
    table = table_of("anatomy", Path("nowhere"), *words, seconds=0.1, num_steps=1)
    rows: dict[Any, Any] = {row[0]: row[1:] for row in table.rows}
    assert tuple(rows) == (*GROUPS, "whole step")
    assert sum(rows[group][1] for group in GROUPS) == pytest.approx(100)
    assert all(rows[group][0] > 0 for group in ("contraction", "normalisation", "element-wise", "optimizer"))
    assert 0 < rows["whole step"][4] < 100, "MFU"
    assert "resnet10t, 4 images of 32 pixels" in table.title


def test_flops_are_beside_the_peak() -> None:
    anatomy = Anatomy(
        num_images=8,
        step_seconds=0.5,
        kernel_seconds=0.4,
        flops=1e12,
        peak=MatmulPeak(8.0, 1024),
        group_seconds=dict.fromkeys(GROUPS, 0.0) | {"contraction": 0.25, "element-wise": 0.1, "normalisation": 0.05},
    )
    table = kinds_table(anatomy, "a network")
    assert table.rows[0] == ("contraction", *map(pytest.approx, (250, 62.5, 1000, 4, 50)))
    assert table.rows[1] == ("normalisation", *map(pytest.approx, (50, 12.5)), None, None, None)
    assert table.rows[-1] == ("whole step", 500, None, *map(pytest.approx, (1000, 2, 25)))
    assert "62.5 % of the time" in table.finding and "16 images/s" in table.notes[0]
    assert "No kernel runs in 20.0 % of a step" in table.notes[1]
