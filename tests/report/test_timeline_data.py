"""The page keeps each sample of an hour."""

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_opt.measure.telemetry.timeline import Timeline, read_timeline
from imagenet_opt.report.timeline_chart import CORES, timeline
from imagenet_opt.report.timeline_data import take_data
from tests.doctor.diagnoses import write_timeline

TYPES = {"f": np.float32, "B": np.uint8}


def unpacked(recording: Timeline) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The data of the page, and the arrays of each trace by its name, unpacked as in timeline.js."""
    figure = timeline(recording)
    data = take_data(figure, recording)
    assert all(trace.x is None and trace.y is None for trace in figure.data)
    arrays = [np.frombuffer(zlib.decompress(base64.b64decode(text)), TYPES[kind]) for kind, text in data["arrays"]]
    keys = {"line": "xy", "lane": "x", "cores": "xz"}
    traces = {
        trace.name: kept | {key: arrays[kept[key]] for key in keys[kept["kind"]]}
        for trace, kept in zip(figure.data, data["traces"], strict=True)
    }
    return data, traces


def test_every_sample_of_an_hour_is_kept(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=3600, num_cpus=2)
    recording = read_timeline(tmp_path / "timeline")
    data, traces = unpacked(recording)
    np.testing.assert_allclose(traces["workers"]["x"], 0.1 * np.arange(36_000), atol=1e-3)
    np.testing.assert_array_equal(traces["workers"]["y"], recording.samples["workers_cpu_percent"])
    cores = traces[CORES]["z"].reshape(traces[CORES]["num"], -1)
    np.testing.assert_allclose(cores[1], np.clip(recording.samples["cpu1_percent"], 0, 100), atol=3)
    ends = recording.spans("step")[:, 1] - recording.samples["unix_seconds"][0]
    np.testing.assert_allclose(traces["step"]["x"][1::3], ends, atol=1e-3)
    assert data["finest"] == "Every 100 ms"


def test_unknown_samples_stay_unknown(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=20, num_cpus=1)
    recording = read_timeline(tmp_path / "timeline")
    for name in ("queue_depth", "cpu0_percent"):
        recording.samples[name][50:60] = np.nan
    data, traces = unpacked(recording)
    assert (np.flatnonzero(np.isnan(traces["queue"]["y"])) == np.arange(50, 60)).all()
    assert (np.flatnonzero(traces[CORES]["z"] == data["noCore"]) == np.arange(50, 60)).all()
