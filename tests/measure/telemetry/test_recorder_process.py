"""The recorder as a process: its files, its end, and training that continues whatever happens to the recorder."""

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

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.recorder import BLOCKED, Recording
from imagenet_opt.measure.telemetry.shared_state import Gauges
from imagenet_opt.measure.telemetry.timeline import KINDS, read_timeline
from suites.faults.not_tried import NotTried
from suites.faults.small_disk import small_disk

TIMEOUT = 60


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def samples_seconds(recording: Recording, seconds: float) -> None:
    wait(lambda: recording.gauges["recorder_seconds"] >= seconds)


def started(folder: Path, gpu_names: tuple[str, str] | None = None) -> tuple[Recording, int]:
    """A recording with some samples, and the recorder's process id."""
    recording = Recording(folder, gpu_names)
    samples_seconds(recording, 0.1)
    assert recording._process is not None
    return recording, recording._process.pid


def program(folder: Path) -> str:
    """A program that records into a folder, and has some samples."""
    return f"""
import time
from pathlib import Path
from imagenet_opt.measure.telemetry.recorder import Recording
recording = Recording(Path({str(folder)!r}), None)
while not recording.gauges["recorder_seconds"] > 0.3:
    time.sleep(0.01)
"""


def test_gauges_and_events_are_recorded(tmp_path: Path) -> None:
    began = time.time()
    recording = Recording(tmp_path, None)
    gauges = recording.gauges
    gauges["queue_depth"], gauges["step"], gauges["phase"] = 5, 42, KINDS.index("validation")
    samples_seconds(recording, 0.5)
    gauges.add_event(KINDS.index("fetch"), 1000.25, 1000.5)
    recording.stop()
    assert recording.error is None
    timeline = read_timeline(tmp_path)
    assert timeline.spans("fetch").tolist() == [[1000.25, 1000.5]]
    assert timeline.events["step"].tolist() == [42]
    last = {name: column[-1] for name, column in timeline.samples.items()}
    assert (last["queue_depth"], last["step"], last["phase"]) == (5, 42, KINDS.index("validation"))
    times = timeline.samples["unix_seconds"]
    assert began <= times[0] < times[-1] <= time.time()
    assert np.all(np.diff(times) > 0)
    assert timeline.cores_percent().shape == (len(times), len(os.sched_getaffinity(0)))
    assert "gpu_memory_used_gib" not in timeline.samples
    used = psutil.virtual_memory()
    assert last["memory_used_gib"] == pytest.approx((used.total - used.available) / 2**30, abs=1)


def test_a_second_recording_continues_in_the_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        recording = Recording(tmp_path, None)
        recording.gauges["step"] = step
        samples_seconds(recording, 0.1)
        recording.stop()
    assert len(list(tmp_path.iterdir())) == 2
    assert {1, 2} <= set(read_timeline(tmp_path).samples["step"].tolist())


def test_after_a_killed_parent_the_recorder_writes_and_ends(tmp_path: Path) -> None:
    parent = f"""{program(tmp_path)}
recording.gauges.add_event(1, 3.0, 4.0)
print(recording._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        recorder = psutil.Process(int(process.stdout.readline()))
        process.kill()
        psutil.wait_procs([recorder], TIMEOUT)
        wait(lambda: not recorder.is_running() or recorder.status() == psutil.STATUS_ZOMBIE)
    timeline = read_timeline(tmp_path)
    assert timeline.spans("fetch").tolist() == [[3.0, 4.0]]
    assert len(timeline.samples["unix_seconds"]) >= 3


def test_signals_to_all_processes_do_not_end_the_recorder(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    recording = Recording(tmp_path, None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before, "the training obeys them"
    assert recording._process is not None
    for number in BLOCKED:  # even while it starts
        os.kill(recording._process.pid, number)
    samples_seconds(recording, 0.2)
    assert not recording.is_lost()
    recording.stop()


def test_stopping_the_group_of_a_training_stops_its_recorder(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", program(tmp_path) + "time.sleep(60)"], process_group=0) as process:
        wait(lambda: psutil.Process(process.pid).children())
        recorder = psutil.Process(process.pid).children()[0]
        os.killpg(process.pid, signal.SIGSTOP)
        wait(lambda: recorder.status() == psutil.STATUS_STOPPED)
        os.killpg(process.pid, signal.SIGKILL)
    wait(lambda: not recorder.is_running() or recorder.status() == psutil.STATUS_ZOMBIE)


def test_a_killed_recorder_is_noticed(tmp_path: Path) -> None:
    recording, pid = started(tmp_path)
    os.kill(pid, signal.SIGKILL)
    wait(recording.is_lost)
    assert recording.error == "ended with status -9"
    recording.gauges.add_event(1, 0.0, 1.0)
    recording.stop()


@pytest.mark.slow
def test_a_recorder_that_no_signal_ends_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, pid = started(tmp_path)
    process = recording._process
    assert process is not None
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda self: None)  # as in a read of a hanging disk
        recording.stop()
    assert recording.error == "the disk hangs, and the recorder could not be killed"
    process.kill()
    process.communicate()


def test_without_processes_it_raises_and_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="absent"):
        Recording(tmp_path, None)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recording = Recording(tmp_path / "file" / "timeline", None)
    wait(recording.is_lost)
    assert recording.error is not None and "NotADirectoryError" in recording.error
    recording.stop()


def test_without_a_driver_only_the_columns_of_the_gpu_are_empty(tmp_path: Path) -> None:
    """This machine has no driver, or its driver knows no such GPU."""
    recording, _ = started(tmp_path, ("GPU-none", "ffffffff:ff:ff.0"))
    recording.stop()
    assert recording.error is None
    assert recording.gauges["nvml_error"] > 0
    timeline = read_timeline(tmp_path)
    assert np.isfinite(timeline.samples["memory_used_gib"]).all()
    assert np.isnan(timeline.samples["gpu_memory_used_gib"]).all()
    assert not timeline.gpu_utilization


def test_a_full_disk_is_an_error_and_leaves_no_partial_file(tmp_path: Path) -> None:
    stopping = f"{program(tmp_path / 'small')}recording.stop(); print(recording.error)"
    try:
        with small_disk(tmp_path / "small", 2**20) as disk:
            disk.fill()
            done = subprocess.run([*disk.prefix, sys.executable, "-c", stopping], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "No space left" in done.stdout
            assert [file.name for file in disk.seen.iterdir()] == ["filler"]
            with pytest.raises(ConfigError, match="no timeline"):
                read_timeline(disk.seen)
    except NotTried as reason:
        pytest.skip(str(reason))


def test_the_recorder_imports_neither_torch_nor_lightning() -> None:
    module = "imagenet_opt.measure.telemetry.recorder_process"
    program = f"import sys, {module}; print({{'torch', 'lightning', 'PIL'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_oldest_unread_events_are_lost() -> None:
    gauges = Gauges()
    for number in range(5000):
        gauges.add_event(2, number, number + 1)
    events = gauges.drain_events()
    assert events["begin_unix_seconds"].tolist() == list(range(5000 - 4096, 5000))
    assert gauges.drain_events() == {}
    gauges.add_event(3, 1.0, 2.0)
    assert gauges.drain_events()["kind"].tolist() == [3]
    gauges.close()
