"""Without CUDA one line says so; tests/gpu/test_nvml.py has the readings."""

import pytest

from imagenet_opt.callbacks.gpu_utilization import GpuUtilization


def test_without_cuda_one_message_and_no_metrics_are_logged(project, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        project.fit(callback := GpuUtilization(), max_steps=4, log_every_n_steps=1)
    assert len([message for message in caplog.messages if "callbacks.gpu_utilization" in message]) == 1
    assert callback.summary() == {}
    assert not [row for _, row in project.logger.rows if any(key.startswith("gpu/") for key in row)]
