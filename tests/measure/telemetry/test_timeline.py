"""Files of a timeline: what is written is read, also in the middle, after an interruption and beside damage."""

import logging
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.measure.telemetry.timeline import KINDS, ChunkWriter, read_timeline


def samples(first: int, num: int, **columns: float) -> dict[str, np.ndarray]:
    times = {"unix_seconds": 1.7e9 + 0.1 * np.arange(first, first + num)}
    return times | {name: np.full(num, value, np.float32) for name, value in columns.items()}


def test_rows_are_read_while_more_are_written(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path / "timeline")
    for first in (0, 5):
        writer.add("samples", samples(first, 5, cpu0_percent=20.0 + first))
        writer.flush()
        read = read_timeline(tmp_path / "timeline")
        assert len(read.samples["unix_seconds"]) == first + 5
    assert read.samples["cpu0_percent"].tolist() == [20.0] * 5 + [25.0] * 5
    assert np.diff(read.samples["unix_seconds"]) == pytest.approx(0.1, abs=1e-6)
    assert read.gpu_power == {}
    assert len(list((tmp_path / "timeline").iterdir())) == 1


def test_a_full_chunk_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1000.0, 1599.0, 1600.0, 1600.5, 1610.0])
    monkeypatch.setattr(timeline, "time", lambda: next(clock))
    writer = ChunkWriter(tmp_path)
    for first in (0, 5, 10):
        writer.add("samples", samples(first, 5))
        writer.flush()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1000000.npz", "1600500.npz"]
    assert len(read_timeline(tmp_path).samples["unix_seconds"]) == 15


def test_a_run_that_goes_on_elsewhere_has_a_gap_and_other_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for began, first, columns in (
        (999.0, 0, {"cpu0_percent": 1.0}),
        (1e6, 100, {"cpu0_percent": 2.0, "cpu10_percent": 3.0}),
    ):
        monkeypatch.setattr(timeline, "time", lambda began=began: began)
        writer = ChunkWriter(tmp_path)
        writer.add("samples", samples(first, 2, **columns))
        writer.flush()
    read = read_timeline(tmp_path)
    assert np.diff(read.samples["unix_seconds"]) == pytest.approx([0.1, 9.9, 0.1], abs=1e-6)
    np.testing.assert_array_equal(read.cores_percent(), [[1, np.nan], [1, np.nan], [2, 3], [2, 3]])


def test_events_are_chosen_by_their_kind(tmp_path: Path) -> None:
    kinds = np.array([KINDS.index(kind) for kind in ("fetch", "step", "fetch")], np.uint8)
    begin = np.array([1.0, 2.0, 4.0])
    writer = ChunkWriter(tmp_path)
    writer.add("events", {"begin_unix_seconds": begin, "end_unix_seconds": begin + 0.5, "kind": kinds})
    writer.flush()
    read = read_timeline(tmp_path)
    assert read.spans("fetch").tolist() == [[1.0, 1.5], [4.0, 4.5]]
    assert read.spans("checkpoint").shape == (0, 2)


def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = ChunkWriter(tmp_path)
    writer.add("samples", samples(0, 3))
    writer.flush()
    (tmp_path / "1.npz").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "2.npz").touch()
    whole = next(tmp_path.glob("?????*.npz")).read_bytes()
    (tmp_path / "3.npz").write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        assert len(read_timeline(tmp_path).samples["unix_seconds"]) == 3
    assert sum("left out of the timeline" in record.getMessage() for record in caplog.records) == 3


def test_a_folder_without_one_says_what_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no timeline in .*nowhere; .*callbacks.timeline"):
        read_timeline(tmp_path / "nowhere")
    ChunkWriter(tmp_path / "empty").flush()
    with pytest.raises(ConfigError, match="no timeline"):
        read_timeline(tmp_path / "empty")


def test_an_hour_with_eight_cpus_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    now = [1.7e9]
    monkeypatch.setattr(timeline, "time", lambda: now[0])
    writer = ChunkWriter(tmp_path)
    for _ in range(6):
        names = [*(f"cpu{i}_percent" for i in range(8)), *(f"other{i}" for i in range(18))]
        columns = {name: random.random(6000).astype(np.float32) for name in names}  # noise: nothing to compress
        writer.add("samples", {"unix_seconds": now[0] + 0.1 * np.arange(6000)} | columns)
        now[0] += 600
        writer.flush()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10e6
