"""Means of what the recorder samples during a fit; tests/gpu/test_nvml.py has the readings of a GPU."""

import pickle
import threading
import time
from typing import Any

import pytest

from imagenet_opt.callbacks.gpu_utilization import GpuUtilization
from tests.callbacks.conftest import Plain

KEYS = {"host/cpu_percent", "host/memory_used_gib"}


class Patient(Plain):
    """Each step lasts for at least one sample, the first for three seconds of samples of another kind."""

    def __init__(self, callback: GpuUtilization) -> None:
        super().__init__()
        self.callback = callback

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        recorder = self.callback._recorder
        assert recorder is not None
        until, totals = time.monotonic() + 60, recorder.totals
        while recorder.totals is totals:
            assert time.monotonic() < until
            time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def test_each_logged_row_holds_the_mean_since_the_last_one_and_without_cuda_only_that_of_the_host(
    project, caplog: pytest.LogCaptureFixture
) -> None:
    callback = pickle.loads(pickle.dumps(GpuUtilization()))  # as spawned processes get one
    with caplog.at_level("INFO"):
        project.fit(callback, module=Patient(callback), limit_val_batches=0, max_steps=6, log_every_n_steps=3)
    rows = [(step, metrics) for step, metrics in project.logger.rows if KEYS & metrics.keys()]
    assert len([message for message in caplog.messages if "callbacks.gpu_utilization" in message]) == 1
    assert [step for step, _ in rows] == [2, 5]
    assert all(metrics.keys() >= KEYS and 0 <= metrics["host/cpu_percent"] <= 100 for _, metrics in rows)
    summary, memory = callback.summary(), [metrics["host/memory_used_gib"] for _, metrics in rows]
    assert summary.keys() == KEYS and min(memory) - 1 <= summary["host/memory_used_gib"] <= max(memory) + 1
    assert "recorder" not in [thread.name for thread in threading.enumerate()]
