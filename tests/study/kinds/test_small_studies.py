"""Each study of one question, small and on a CPU."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.measure.telemetry.torch_profile import GROUPS
from imagenet_opt.probe import device_peak
from tests.study.studies import TINY, table_of

CPU = (*TINY, "trainer.accelerator=cpu")


def test_a_step_is_split_into_kinds_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_peak.SIZES, "cpu", (512,))
    table = table_of("anatomy", Path("nowhere"), *CPU, seconds=0.1, num_steps=1)
    rows: dict[Any, Any] = {row[0]: row[1:] for row in table.rows}
    assert tuple(rows) == (*GROUPS, "whole step") and 0 < rows["whole step"][4] < 100, "MFU"
    assert sum(rows[group][1] for group in GROUPS) == pytest.approx(100)


@pytest.mark.parametrize(
    ("name", "options", "num_failed"),
    [
        ("streams", {"num_batches": [2]}, 0),
        ("shapes", {"channels": [7, 8], "batches": [8], "outputs": [1000, 64 * 10**12]}, 1),  # the last needs a PiB
        pytest.param("torchscript", {}, 0, marks=pytest.mark.slow),
    ],
)
def test_each_row_has_a_rate_or_fails_alone(
    name: str, options: dict[str, Any], num_failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling would take a minute
    table = table_of(name, tmp_path, *CPU, seconds=0.01, repeats=1, **options)
    place = table.headings.index("images/s" if "images/s" in table.headings else table.headings[3])
    rates: list[Any] = [row[place] for row in table.rows]
    assert rates.count(None) == num_failed and all(rate > 0 for rate in rates if rate is not None)
