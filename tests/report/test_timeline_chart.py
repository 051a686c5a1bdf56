"""The timeline figure: every column that has data, with its peaks, gaps and events, in fewer points."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagenet_opt.measure.telemetry.timeline import read_timeline
from imagenet_opt.report.downsample import min_max
from imagenet_opt.report.timeline_chart import MOST_KEPT, timeline
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


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(2, 100))
def test_maximum_and_minimum_stay(values: list[float], most: int) -> None:
    xs, ys = min_max(np.arange(len(values)), values, most=most)
    assert ys.max() == max(values) and ys.min() == min(values)
    assert len(xs) <= max(most, 2)
    assert (np.diff(xs) > 0).all()
    assert all(values[int(x)] == y for x, y in zip(xs, ys, strict=True))


def test_a_gap_stays_a_gap() -> None:
    values = np.ones(1000)
    values[300:700] = np.nan
    xs, ys = min_max(np.arange(1000), values, most=100)
    assert np.isnan(ys[(xs > 310) & (xs < 690)]).all()
    assert np.isfinite(ys[(xs < 290) | (xs > 710)]).all()
