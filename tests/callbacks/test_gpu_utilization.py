"""Without CUDA one line says so; tests/gpu/test_nvml.py has the readings."""

import threading

import pytest

from imagenet_opt.callbacks.gpu_utilization import GpuUtilization
from imagenet_opt.errors import ConfigError


def test_without_cuda_one_message_and_no_metrics_are_logged(project, caplog: pytest.LogCaptureFixture) -> None:
    callback = GpuUtilization(interval_seconds=0.001)
    with caplog.at_level("INFO"):
        project.fit(callback, max_steps=4, log_every_n_steps=1)
    lines = [message for message in caplog.messages if "gpu_utilization" in message]
    assert lines == ["training runs on cpu, so callbacks.gpu_utilization logs no gpu/* columns"]
    assert callback.summary() == {}
    assert not [key for _, row in project.logger.rows for key in row if key.startswith("gpu/")]
    assert "gpu-sampler" not in [thread.name for thread in threading.enumerate()]


def test_a_negative_interval_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.gpu_utilization\.interval_seconds"):
        GpuUtilization(interval_seconds=-1.0)
