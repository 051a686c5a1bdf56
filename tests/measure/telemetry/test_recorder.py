"""The recorder: its files, also after a kill, and its means."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from imagenet_opt.measure.telemetry.recorder import Recorder
from imagenet_opt.measure.telemetry.timeline import read_timeline


def recorded(folder: Path, gpu_names: tuple[str, str] | None = None) -> Recorder:
    """A recorder with some samples."""
    recorder, end = Recorder(gpu_names), time.monotonic() + 60
    recorder.write_to(folder)
    while not recorder.totals:
        assert time.monotonic() < end
        time.sleep(0.02)
    return recorder


def test_gauges_and_events_are_recorded_and_a_second_recording_continues(tmp_path: Path) -> None:
    began = time.time()
    for step in (1, 42):
        recorder = recorded(tmp_path)
        recorder.gauges |= {"queue_depth": 5.0, "step": float(step)}
        recorder.add_event("fetch", 1000.25, 1000.5)
        recorder.stop()
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
