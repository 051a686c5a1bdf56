"""How long steps took, of a timeline."""

from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.measure.telemetry.timeline import KINDS, ChunkWriter, Timeline, read_timeline
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import make_diagnosis


def recorded(folder: Path, times: np.ndarray, events: list[tuple[float, float, str]]) -> Timeline:
    writer = ChunkWriter(folder)
    writer.add("samples", {"unix_seconds": times})
    kinds = np.array([KINDS.index(kind) for *_, kind in events], np.uint8)
    begin, end = (np.array([event[i] for event in events], float) for i in (0, 1))
    writer.add("events", {"begin_unix_seconds": begin, "end_unix_seconds": end, "kind": kinds})
    writer.flush()
    return read_timeline(folder)


def test_steps_are_timed_end_to_end_without_what_interrupts_them(tmp_path: Path) -> None:
    steps = [(end - 0.5, end, "step") for end in (1.0, 2.0, 3.5, 14.0, 15.0, 815.0, 816.0)]
    others = [(0.0, 3.5, "epoch"), (3.5, 13.0, "validation")]
    times = np.concatenate([np.arange(0, 15.5, 0.1), np.arange(814, 816, 0.1)])
    found = Record("run", timeline=recorded(tmp_path, times, [*steps, *others]))
    assert found.steps is not None and found.steps.seconds == pytest.approx((1, 1.5, 1, 1))


@pytest.mark.parametrize("num", [0, 1])
def test_too_few_steps_have_no_length(tmp_path: Path, num: int) -> None:
    events = [(0.0, 2.0, "epoch")] + [(0.5, 1.0, "step")] * num
    assert Record("run", timeline=recorded(tmp_path, np.arange(0, 2, 0.1), events)).steps is None


@pytest.mark.parametrize(
    ("num_doctor", "num_run", "whose"),
    [(3, 9, "the run"), (9, 3, "the doctor's full run"), (3, 0, "the doctor's full run")],
)
def test_the_longer_series_of_steps_is_taken(tmp_path: Path, num_doctor: int, num_run: int, whose: str) -> None:
    ends = np.arange(1.0, num_run + 2)
    of_run = recorded(tmp_path, np.arange(0, num_run + 2, 0.1), [(end - 0.5, end, "step") for end in ends])
    steps = Record("run", make_diagnosis(step_seconds=(7.0,) * num_doctor), of_run).steps
    assert steps is not None and (len(steps.seconds), steps.whose) == (max(num_doctor, num_run), whose)
    assert set(steps.seconds) == ({7.0} if num_doctor > num_run else {1.0})
