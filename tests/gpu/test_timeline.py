"""The recorder's samples of a device that really computes."""

import time
from pathlib import Path

from imagenet_opt.measure.telemetry.gpu import device_names
from imagenet_opt.measure.telemetry.recorder import Recorder
from imagenet_opt.measure.telemetry.timeline import read_timeline
from tests.gpu.test_nvml import work


def test_a_busy_device_is_recorded_as_busy(tmp_path: Path) -> None:
    recorder = Recorder(device_names(0))
    recorder.write_to(tmp_path)
    began = time.time()
    work(5)
    ended = time.time()
    recorder.stop()
    samples = read_timeline(tmp_path).samples
    during = (samples["unix_seconds"] > began + 2.5) & (samples["unix_seconds"] < ended)
    assert samples["gpu_utilization_percent"][during].mean() > 80
    assert samples["gpu_power_watts"][during].min() > 1
    assert samples["gpu_memory_used_gib"].max() > 0.1
