"""The timeline figure: every column that has data, with its peaks, gaps and events, in fewer points."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagenet_opt.measure.telemetry.timeline import read_timeline
from imagenet_opt.report.timeline_chart import MOST_POINTS, min_max, timeline
from tests.doctor.diagnoses import write_timeline
from tests.report.recordings import recorded

TIMES = 100 + 0.1 * np.arange(50)


def test_a_long_run_keeps_peaks_of_one_sample(tmp_path: Path) -> None:
    write_timeline(tmp_path, seconds=2000, peak_at=17_123)
    figure = timeline(read_timeline(tmp_path / "timeline"))
    traces = {trace.name: trace for trace in figure.data}
    times, rates = traces["read"].x, traces["read"].y
    assert len(times) <= MOST_POINTS and rates.max() == 777
    assert times[rates.argmax()] == pytest.approx(1712.3, abs=1e-2)
    assert figure.layout.title.text == "Minimum and maximum per 0.4 s"


def test_events_marks_and_waits_are_at_their_times_and_rows_without_data_are_left_out(tmp_path: Path) -> None:
    events = [(101.0, 102.5, "fetch"), (103.0, 104.0, "validation")]
    columns = {"queue_depth": np.ones(50), "page_cache_gib": np.full(50, np.nan, np.float32)}
    figure = timeline(recorded(tmp_path, TIMES, events, **columns))
    shapes = [(shape.type, shape.x0, shape.x1) for shape in figure.layout.shapes]
    assert shapes == [("rect", 1, 2.5), ("line", 3, 3)]
    starts = {trace.name: list(trace.x[:2]) for trace in figure.data}
    assert [*starts] == ["fetch", "validation", "queue"]
    assert (starts["fetch"], starts["validation"]) == ([1, 2.5], [3, 4])
    assert figure.layout.title.text == "Every 100 ms"


def test_no_line_is_drawn_through_a_pause(tmp_path: Path) -> None:
    times = 100 + np.concatenate([0.1 * np.arange(50), 900 + 0.1 * np.arange(50)])
    (line,) = timeline(recorded(tmp_path, times, queue_depth=np.ones(100))).data
    assert np.isnan(line.y).sum() == 1


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=1, max_size=500), st.integers(2, 100))
def test_maximum_and_minimum_stay(values: list[float], most: int) -> None:
    xs, ys = min_max(np.arange(len(values)), values, most=most)
    if not np.isnan(values).all():
        assert np.nanmax(ys) == np.nanmax(values) and np.nanmin(ys) == np.nanmin(values)
    assert len(xs) <= max(most, 2)
    assert (np.diff(xs) > 0).all()
    np.testing.assert_array_equal(ys, np.array(values)[xs.astype(int)])
