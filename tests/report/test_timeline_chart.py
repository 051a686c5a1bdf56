"""The timeline figure: every column that has data, with its peaks, gaps and events."""

from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.measure.telemetry.timeline import read_timeline
from imagenet_opt.report.timeline_chart import MOST_KEPT, longest, timeline
from tests.doctor.diagnoses import write_timeline
from tests.report.recordings import recorded

TIMES = 100 + 0.1 * np.arange(50)


def test_a_long_run_keeps_peaks_of_one_sample(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=10_000, num_cpus=1, peak_at=71_234)
    traces = {trace.name: trace for trace in timeline(read_timeline(tmp_path / "timeline")).data}
    times, rates = traces["read"].x, traces["read"].y
    assert len(times) <= MOST_KEPT and rates.max() == 777
    assert times[rates.argmax()] == pytest.approx(7123.4, abs=1e-2)


def test_rows_without_data_are_left_out(tmp_path: Path) -> None:
    absent = np.full(50, np.nan, np.float32)
    figure = timeline(recorded(tmp_path, TIMES, queue_depth=np.ones(50), page_cache_gib=absent))
    assert [trace.name for trace in figure.data] == ["queue"]


def test_events_and_marks_are_at_their_times(tmp_path: Path) -> None:
    events = [(101.0, 102.5, "fetch"), (103.0, 104.0, "validation")]
    figure = timeline(recorded(tmp_path, TIMES, events, queue_depth=np.ones(50)))
    assert [(shape.type, shape.x0, shape.x1) for shape in figure.layout.shapes] == [("line", 3, 3)]
    lanes = {trace.name: list(trace.x[:2]) for trace in figure.data}
    assert (lanes["fetch"], lanes["validation"]) == ([1, 2.5], [3, 4])


def test_no_line_is_drawn_through_a_pause(tmp_path: Path) -> None:
    times = 100 + np.concatenate([0.1 * np.arange(50), 900 + 0.1 * np.arange(50)])
    (line,) = timeline(recorded(tmp_path, times, queue_depth=np.ones(100))).data
    assert np.isnan(line.y).sum() == 1


def test_the_longest_spans_keep_their_order() -> None:
    begin = np.arange(1000.0)
    spans = np.stack([begin, begin + np.where(begin == 617, 0.9, 0.1)], axis=1)
    begins = longest(spans, 300)[:, 0]
    assert len(begins) == 300 and 617 in begins and (np.diff(begins) > 0).all()


def test_all_rows_share_one_time_axis(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=20)
    figure = timeline(read_timeline(tmp_path / "timeline"), simulated=True)
    assert "simulated" in figure.layout.title.text
    layout = figure.layout.to_plotly_json()
    axes = {name.replace("axis", ""): axis for name, axis in layout.items() if name.startswith("xaxis")}
    assert len(axes) == 9
    assert len({axis.get("matches", name) for name, axis in axes.items()}) == 1
    assert all(axis["range"] == [0, pytest.approx(19.9)] for axis in axes.values())
