"""The trace of the profiler has the kernels of a GPU."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.profiler import Profiler
from tests.conftest import quiet_trainer


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
