"""Small fits on a data module."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.datamodule import ImageData
from tests.conftest import quiet_trainer

Keys = list[tuple[int, int, int]]


class Recorder(LightningModule):
    """Trains nothing to speak of; keeps the key of each batch with the size of its images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(3, 1, 1)
        self.trained: Keys = []
        self.validated: set[int] = set()

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        self.trained.append((batch.key.epoch, batch.key.step, batch.images.shape[-1]))
        assert batch.images.shape[-1] == batch.key.image_size
        return self.net(batch.images).mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.validated.add(batch.images.shape[-1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: Any, *callbacks: Callback, resume: Path | None = None, module: Any = None, **options) -> Recorder:
    """data: a data module or a loader."""
    module = module or Recorder()
    options = {"use_distributed_sampler": False, "max_epochs": 3} | options
    given = {"datamodule": data} if isinstance(data, ImageData) else {"train_dataloaders": data, "val_dataloaders": []}
    quiet_trainer(callbacks=list(callbacks), **options).fit(module, **given, ckpt_path=resume, weights_only=True)
    return module
