"""The timeline's rows: every column that has data, peaks and waits where they were."""

from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.measure.telemetry.timeline import KINDS, ChunkWriter, read_timeline
from imagenet_opt.report.timeline_chart import MOST_BANDS, MOST_POINTS, longest, timeline
from tests.doctor.diagnoses import write_timeline


def test_a_peak_of_one_sample_is_drawn_where_it_was(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=1200, peak_at=7003)
    drawn = {trace.name: trace for trace in timeline(read_timeline(tmp_path / "timeline")).data}
    assert max(drawn["read"].y) == 777
    assert drawn["read"].x[np.argmax(drawn["read"].y)] == pytest.approx(700.3)
    assert len(drawn["read"].x) <= MOST_POINTS


def write(folder: Path, times: np.ndarray, *events: tuple[float, float, str], **columns: np.ndarray) -> None:
    writer = ChunkWriter(folder / "timeline")
    writer.add("samples", {"unix_seconds": times} | columns)
    ends = {"begin_unix_seconds": 0, "end_unix_seconds": 1}
    spans = {name: np.array([event[end] for event in events], float) for name, end in ends.items()}
    writer.add("events", spans | {"kind": np.array([KINDS.index(kind) for *_, kind in events], np.uint8)})
    writer.flush()


def test_rows_without_data_are_left_out(tmp_path: Path) -> None:
    absent = np.full(50, np.nan, np.float32)
    write(tmp_path, 100 + 0.1 * np.arange(50), queue_depth=np.ones(50), page_cache_gib=absent)
    figure = timeline(read_timeline(tmp_path / "timeline"))
    assert [trace.name for trace in figure.data] == ["queue"]


def test_waits_and_marks_are_where_they_were(tmp_path: Path) -> None:
    events = [(101.0, 102.5, "fetch"), (103.0, 104.0, "validation")]
    write(tmp_path, 100 + 0.1 * np.arange(50), *events, queue_depth=np.ones(50))
    figure = timeline(read_timeline(tmp_path / "timeline"))
    assert [(shape.type, shape.x0, shape.x1) for shape in figure.layout.shapes] == [("rect", 1, 2.5), ("line", 3, 3)]
    lanes = {trace.name: list(trace.x[:2]) for trace in figure.data}
    assert lanes["fetch"] == [1, 2.5]


def test_no_line_is_drawn_through_a_break(tmp_path: Path) -> None:
    times = 100 + np.concatenate([0.1 * np.arange(50), 900 + 0.1 * np.arange(50)])
    write(tmp_path, times, queue_depth=np.ones(100))
    (line,) = timeline(read_timeline(tmp_path / "timeline")).data
    assert np.isnan(np.asarray(line.y)).sum() == 1


def test_of_many_waits_the_longest_are_shaded(tmp_path: Path) -> None:
    begin = np.arange(1000.0)
    spans = np.stack([begin, begin + np.where(begin == 617, 0.9, 0.1)], axis=1)
    assert len(longest(spans, MOST_BANDS)) == MOST_BANDS
    assert 617 in longest(spans, MOST_BANDS)[:, 0]
    assert (np.diff(longest(spans, MOST_BANDS)[:, 0]) > 0).all()


def test_all_rows_share_one_time(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=20)
    figure = timeline(read_timeline(tmp_path / "timeline"))
    layout = figure.layout.to_plotly_json()
    axes = {name.replace("axis", ""): axis for name, axis in layout.items() if name.startswith("xaxis")}
    assert len(axes) == 9
    assert len({axis.get("matches", name) for name, axis in axes.items()}) == 1
    assert all(axis["range"] == [0, pytest.approx(19.9)] for axis in axes.values())


@pytest.mark.parametrize(("seconds", "title"), [(300, "Every 100 ms"), (3600, "Minimum and maximum per 1.8 s")])
def test_the_title_says_how_finely_it_is_drawn(tmp_path: Path, seconds: float, title: str) -> None:
    write_timeline(tmp_path, seconds=seconds)
    assert timeline(read_timeline(tmp_path / "timeline")).layout.title.text == title


def test_only_the_gpu_is_simulated(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=20)
    figure = timeline(read_timeline(tmp_path / "timeline"), simulated=True)
    assert "simulated" in figure.layout.title.text
