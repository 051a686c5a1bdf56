"""On a GPU times are those of kernels, and all parts of an anatomy agree."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.profiler import Profiler
from suites.studies.anatomy import matmul_peak, measure, table_of
from suites.studies.synthetic_step import SyntheticStep
from tests.conftest import quiet_trainer

SMALL = ["model.name=resnet18", "data.image_size=64", "data.batch_size=32"]


@pytest.mark.slow
def test_the_parts_of_a_step_agree() -> None:
    found = measure(SyntheticStep([*SMALL, "trainer.precision=bf16-mixed"]), seconds=1.0, num_steps=5)
    assert found.kernel_seconds is not None and 0 < found.kernel_seconds < 1.1 * found.step_seconds
    assert sum(found.group_seconds.values()) == pytest.approx(found.kernel_seconds, rel=0.1)
    rows: Any = table_of(found, "").rows
    shares = {row[0]: row[2] for row in rows}
    assert shares["contraction"] > 20 and shares["optimizer"] > 0 and shares["normalisation"] > 5
    assert 0 < rows[-1][-1] < 100, "MFU"


def test_peaks_are_below_what_no_device_has_and_tensor_cores_show() -> None:
    precisions = ("bf16-true", "32-true")
    half, full = (matmul_peak(SyntheticStep([*SMALL, f"trainer.precision={name}"]), 1.0)[0] for name in precisions)
    assert 1e12 < full < half < 5000e12


class Training(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 256, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.net(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_profilers_trace_has_kernels(tmp_path: Path) -> None:
    trainer = quiet_trainer(
        accelerator="gpu", devices=1, max_steps=8, callbacks=[Profiler(folder=tmp_path, start_step=3, num_steps=2)]
    )
    trainer.fit(Training(), DataLoader(torch.randn(64, 3, 32, 32), batch_size=8))
    with gzip.open(tmp_path / "profile/step_5.json.gz", "rt") as trace:
        events = json.load(trace)["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
