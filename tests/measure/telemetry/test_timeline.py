"""Files of a timeline: read while the run writes, after an interruption, and beside damaged files."""

import logging
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.measure.telemetry.timeline import ChunkWriter, read_timeline


def samples(first: int, num: int, **columns: float) -> dict[str, np.ndarray]:
    times = {"unix_seconds": 1.7e9 + 0.1 * np.arange(first, first + num)}
    return times | {name: np.full(num, value, np.float32) for name, value in columns.items()}


def write(folder: Path, columns: dict[str, np.ndarray]) -> None:
    writer = ChunkWriter(folder)
    writer.add("samples", columns)
    writer.flush()


def test_a_run_that_resumes_elsewhere_has_a_gap_and_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour, columns in ((1, samples(0, 2, step=1.0)), (2, samples(100, 2, step=2.0, gpu_power_watts=3.0))):
        monkeypatch.setattr(timeline, "time", lambda hour=hour: 3600.0 * hour)  # at which files are written
        write(tmp_path, columns)
    read = read_timeline(tmp_path)
    assert np.diff(read.samples["unix_seconds"]) == pytest.approx([0.1, 9.9, 0.1], abs=1e-6)
    np.testing.assert_array_equal(read.samples["gpu_power_watts"], [np.nan, np.nan, 3, 3])
    assert read.samples["step"].tolist() == [1, 1, 2, 2]


def test_a_damaged_file_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_MOST_BYTES", 2**20)
    write(tmp_path, samples(0, 3))
    (tmp_path / "1.npz").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "2.npz").touch()
    content = next(tmp_path.glob("?????*.npz")).read_bytes()
    (tmp_path / "3.npz").write_bytes(content[: len(content) // 2])
    np.savez_compressed(tmp_path / "4.npz", bomb=np.zeros(2**20, np.uint8))
    with caplog.at_level(logging.WARNING):
        assert len(read_timeline(tmp_path).samples["unix_seconds"]) == 3
    assert sum("left out of the timeline" in record.getMessage() for record in caplog.records) == 4


def test_a_folder_without_a_timeline_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no timeline in .*nowhere; .*callbacks.timeline"):
        read_timeline(tmp_path / "nowhere")
    ChunkWriter(tmp_path / "empty").flush()
    with pytest.raises(ConfigError, match="no timeline"):
        read_timeline(tmp_path / "empty")
