import threading
from time import monotonic
from typing import Any

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from imagenet_opt.callbacks.gpu_utilization import GpuUtilization
from imagenet_opt.measure.telemetry.gpu import GpuColumns, device_names, read_gpu
from tests.callbacks.conftest import Memory
from tests.conftest import quiet_trainer


def work(seconds: float) -> None:
    """Keep the device busy."""
    matrix = torch.rand(4096, 4096, device="cuda")
    end = monotonic() + seconds
    while monotonic() < end:
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()


def test_the_reading_is_of_the_device_that_torch_uses() -> None:
    torch.zeros(1, device="cuda")
    before = GpuColumns(*device_names(0)).row()["gpu_memory_used_gib"]
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    after = GpuColumns(*device_names(0)).row()["gpu_memory_used_gib"]
    del block
    assert after - before == pytest.approx(1.0, abs=0.1)
    work(1.5)
    row = GpuColumns(*device_names(0)).row()
    assert row["gpu_utilization_percent"] > 80 and row["gpu_power_watts"] > 1


def test_the_state_of_the_device_is_read_while_it_works() -> None:
    work(1.0)
    state = read_gpu(0)
    assert state is not None and state.name in torch.cuda.get_device_name(0)
    assert state.clock_reasons is not None and state.others is not None


class Busy(BoringModel):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        work(0.3)
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.*:FutureWarning")
def test_the_callback_logs_its_keys_at_lightnings_rows() -> None:
    logger, callback = Memory(), GpuUtilization()
    trainer = quiet_trainer(
        accelerator="gpu",
        devices=1,
        max_steps=10,
        limit_val_batches=0,
        log_every_n_steps=5,
        callbacks=[callback],
        logger=logger,
    )
    trainer.fit(Busy())
    rows = [(step, metrics) for step, metrics in logger.rows if "gpu/utilization_percent" in metrics]
    assert [step for step, _ in rows] == [4, 9]
    assert rows[1][1]["gpu/utilization_percent"] > 80
    assert callback.summary()["gpu/memory_used_gib"] > 0
    assert "recorder" not in [thread.name for thread in threading.enumerate()]
