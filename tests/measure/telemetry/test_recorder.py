"""The recorder: its files, also while it runs, and its means."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from imagenet_opt.measure.telemetry import recorder
from imagenet_opt.measure.telemetry.recorder import Recorder
from imagenet_opt.measure.telemetry.timeline import read_timeline


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def recorded(folder: Path, gpu_names: tuple[str, str] | None = None) -> Recorder:
    """A recorder with some samples."""
    made = Recorder(gpu_names)
    made.write_to(folder)
    wait_until(lambda: made.totals)
    return made


def test_gauges_and_events_are_recorded_and_a_second_recording_continues(tmp_path: Path) -> None:
    began = time.time()
    for step in (1, 42):
        made = recorded(tmp_path)
        made.gauges |= {"queue_depth": 5.0, "step": float(step)}
        made.add_event("fetch", 1000.25, 1000.5)
        made.stop()
    assert len(list(tmp_path.iterdir())) == 2, "each recording rewrites its own file"
    timeline = read_timeline(tmp_path)
    assert timeline.spans("fetch").tolist() == [[1000.25, 1000.5]] * 2
    assert timeline.events["step"].tolist() == [1, 42]
    last = {name: column[-1] for name, column in timeline.samples.items()}
    assert (last["queue_depth"], last["step"]) == (5, 42)
    times = timeline.samples["unix_seconds"]
    assert began <= times[0] < times[-1] <= time.time() and np.all(np.diff(times) > 0)
    assert "gpu_memory_used_gib" not in timeline.samples
    used = psutil.virtual_memory()
    assert last["memory_used_gib"] == pytest.approx((used.total - used.available) / 2**30, rel=0.5)


def test_a_running_recorder_writes_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a killed process leaves its timeline up to the last flush."""
    monkeypatch.setattr(recorder, "_FLUSH_SECONDS", 0.3)
    running = Recorder()
    running.write_to(tmp_path)
    running.add_event("fetch", 3.0, 4.0)
    wait_until(lambda: list(tmp_path.glob("*.npz")))
    timeline = read_timeline(tmp_path)
    running.stop()
    assert timeline.spans("fetch").tolist() == [[3.0, 4.0]] and len(timeline.samples["unix_seconds"])


def test_without_a_driver_only_the_columns_of_the_gpu_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This machine has no driver, or its driver knows no such GPU."""
    made = recorded(tmp_path, ("GPU-none", "ffffffff:ff:ff.0"))
    made.stop()
    assert len([message for message in caplog.messages if "NVML" in message]) == 1
    samples = read_timeline(tmp_path).samples
    assert np.isfinite(samples["memory_used_gib"]).all() and np.isnan(samples["gpu_memory_used_gib"]).all()
    assert "gpu_memory_used_gib" not in made.totals
