"""The recorder: its files, also after a kill, and its means."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from imagenet_opt.measure.telemetry.recorder import Recorder, means, next_due
from imagenet_opt.measure.telemetry.timeline import KINDS, read_timeline


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def recorded(folder: Path, gpu_names: tuple[str, str] | None = None) -> Recorder:
    """A recorder with some samples."""
    recorder = Recorder(gpu_names)
    recorder.write_to(folder)
    wait(lambda: recorder.seconds > 0.2)
    return recorder


def test_gauges_and_events_are_recorded(tmp_path: Path) -> None:
    began = time.time()
    recorder = recorded(tmp_path)
    recorder.gauges |= {"queue_depth": 5.0, "step": 42.0, "phase": float(KINDS.index("validation"))}
    recorder.add_event("fetch", 1000.25, 1000.5)
    recorder.stop()
    timeline = read_timeline(tmp_path)
    assert timeline.spans("fetch").tolist() == [[1000.25, 1000.5]]
    assert timeline.events["step"].tolist() == [42]
    last = {name: column[-1] for name, column in timeline.samples.items()}
    assert (last["queue_depth"], last["step"], last["phase"]) == (5, 42, KINDS.index("validation"))
    times = timeline.samples["unix_seconds"]
    assert began <= times[0] < times[-1] <= time.time() and np.all(np.diff(times) > 0)
    assert timeline.cores_percent().shape == (len(times), len(os.sched_getaffinity(0)))
    assert "gpu_memory_used_gib" not in timeline.samples
    used = psutil.virtual_memory()
    assert last["memory_used_gib"] == pytest.approx((used.total - used.available) / 2**30, abs=1)


def test_a_second_recording_continues_in_the_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        recorder = recorded(tmp_path)
        recorder.gauges["step"] = step
        recorder.stop()
    assert len(list(tmp_path.iterdir())) == 2
    assert {1, 2} <= set(read_timeline(tmp_path).samples["step"].tolist())


def test_the_timeline_of_a_killed_process_can_be_read_up_to_its_last_flush(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from imagenet_opt.measure.telemetry import recorder
recorder._FLUSH_SECONDS = 0.3
running = recorder.Recorder()
running.write_to(Path({str(tmp_path)!r}))
running.add_event("fetch", 3.0, 4.0)
while not list(Path({str(tmp_path)!r}).glob("*.npz")):
    time.sleep(0.01)
print(flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    timeline = read_timeline(tmp_path)
    assert timeline.spans("fetch").tolist() == [[3.0, 4.0]]
    assert len(timeline.samples["unix_seconds"])


def test_a_folder_that_cannot_be_written_is_one_warning_and_sampling_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    recorder = recorded(tmp_path / "file" / "timeline")
    recorder.stop()
    assert [message for message in caplog.messages if "no longer recorded" in message]
    assert 0 <= means({}, recorder.totals)["cpu_percent"] <= 100


def test_without_a_driver_only_the_columns_of_the_gpu_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This machine has no driver, or its driver knows no such GPU."""
    recorder = recorded(tmp_path, ("GPU-none", "ffffffff:ff:ff.0"))
    recorder.stop()
    assert len([message for message in caplog.messages if "NVML" in message]) == 1
    samples = read_timeline(tmp_path).samples
    assert np.isfinite(samples["memory_used_gib"]).all() and np.isnan(samples["gpu_memory_used_gib"]).all()
    assert "gpu_memory_used_gib" not in recorder.totals


def test_means_are_over_the_time_between_two_readings_in_which_a_column_was_known() -> None:
    before = {"cpu_percent": (50.0, 1.0), "gpu_power_watts": (100.0, 1.0)}
    after = {"cpu_percent": (290.0, 4.0), "gpu_power_watts": (100.0, 1.0), "step": (12.0, 3.0)}
    assert means(before, after) == {"cpu_percent": 80.0, "step": 4.0}


@pytest.mark.parametrize(("now", "expected"), [(10.0, 10.1), (10.04, 10.1), (10.35, 10.4)])
def test_missed_times_are_skipped(now: float, expected: float) -> None:
    assert math.isclose(next_due(10.0, now, 0.1), expected)
