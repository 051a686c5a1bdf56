"""The driver's own samples of a device that really computes."""

import time
from pathlib import Path

import numpy as np

from imagenet_opt.measure.telemetry.gpu import device_names
from imagenet_opt.measure.telemetry.recorder import Recording
from imagenet_opt.measure.telemetry.timeline import read_timeline
from tests.gpu.test_nvml import work


def test_a_busy_device_is_recorded_as_busy(tmp_path: Path) -> None:
    recording = Recording(tmp_path, device_names(0))
    began = time.time()
    work(4)
    ended = time.time()
    recording.stop()
    assert recording.error is None
    timeline = read_timeline(tmp_path)
    times = timeline.gpu_utilization["unix_seconds"]
    during = (times > began + 1.5) & (times < ended)
    assert during.sum() >= 2
    assert timeline.gpu_utilization["gpu_utilization_percent"][during].mean() > 80
    assert np.all(np.diff(times) > 0)
    assert timeline.gpu_power["gpu_power_watts"].min() > 1
    assert timeline.samples["gpu_memory_used_gib"].max() > 0.1
