"""What the page keeps of a timeline: each sample, or of a long run each peak."""

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.measure.telemetry.timeline import read_timeline
from imagenet_opt.report.timeline_data import MOST_KEPT, pack
from tests.doctor.diagnoses import write_timeline

TYPES = {"f": np.float32, "H": np.uint16, "B": np.uint8}


def unpack(packed: dict[str, Any]) -> list[np.ndarray]:
    """As timeline.js does it."""
    data = zlib.decompress(base64.b64decode(packed["samples"]))
    return [np.frombuffer(data, TYPES[kind], num, offset) for kind, offset, num in packed["plan"]["arrays"]]


def drawn(packed: dict[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    line, arrays = packed["plan"]["lines"][name], unpack(packed)
    return arrays[line["x"]], line["low"] + line["step"] * arrays[line["y"]]


def test_an_hour_is_kept_sample_by_sample(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=3600, num_cpus=2)
    found = read_timeline(tmp_path / "timeline")
    packed = pack(found)
    times, percent = drawn(packed, "workers")
    np.testing.assert_allclose(times, 0.1 * np.arange(36_000), atol=1e-3)
    values = found.samples["workers_cpu_percent"]
    np.testing.assert_allclose(percent, values, atol=np.ptp(values) / 60_000)
    plan, arrays = packed["plan"], unpack(packed)
    cores = arrays[plan["cores"]["z"]].reshape(plan["cores"]["num"], -1)
    np.testing.assert_allclose(cores[1], np.clip(found.samples["cpu1_percent"], 0, 100), atol=3)
    ends = found.spans("step")[:, 1] - found.samples["unix_seconds"][0]
    np.testing.assert_allclose(arrays[plan["lanes"]["step"]["end"]], ends, atol=1e-3)
    assert plan["finest"] == "Every 100 ms"


def test_of_a_longer_run_the_peaks_are_kept(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=10_000, num_cpus=1, peak_at=71_234)
    packed = pack(read_timeline(tmp_path / "timeline"))
    times, rates = drawn(packed, "read")
    assert len(times) <= MOST_KEPT
    assert rates.max() == pytest.approx(777)
    assert times[rates.argmax()] == pytest.approx(7123.4, abs=1e-2)
    assert packed["plan"]["finest"] == "Minimum and maximum per 0.5 s"


def test_what_is_not_known_has_a_level_of_its_own(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=20, num_cpus=1)
    found = read_timeline(tmp_path / "timeline")
    for name in ("queue_depth", "cpu0_percent"):
        found.samples[name][50:60] = np.nan
    packed = pack(found)
    plan, arrays = packed["plan"], unpack(packed)
    assert (np.flatnonzero(arrays[plan["lines"]["queue"]["y"]] == plan["none"]) == np.arange(50, 60)).all()
    assert (np.flatnonzero(arrays[plan["cores"]["z"]] == plan["noCore"]) == np.arange(50, 60)).all()
