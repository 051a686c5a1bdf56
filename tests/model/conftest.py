"""Small batches, a small network, and one way to fit it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.model.schedule import cosine
from tests.conftest import quiet_trainer


@dataclass
class Images:
    images: Tensor
    labels: Tensor
    valid: Tensor
    indices: Tensor


def batches(num: int, *, seed: int = 0) -> list[Images]:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(num, 6, 3, 4, 4, generator=random)
    labels = torch.randint(0, 3, (num, 6), generator=random)
    indices = torch.arange(num * 6).view(num, 6)
    valid = torch.ones(6, dtype=torch.bool)
    return [Images(i, label, valid.clone(), j) for i, label, j in zip(images, labels, indices, strict=True)]


class Loader:
    """Any iterable with a length is a loader; a plain list would be taken for several."""

    def __init__(self, batches: list[Images]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Images]:
        return iter(self.batches)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))


OPTIMIZER = partial(
    build_optimizer, name="sgd", lr=0.5, momentum=0.9, nesterov=False, weight_decay=1e-3, fused=None, global_batch=64
)


TRAINER = {"max_epochs": 2, "log_every_n_steps": 1, "logger": False, "plugins": None, "val_check_interval": None}
TRAINER |= {"devices": 1, "strategy": "auto", "use_distributed_sampler": True}


class Synced(Callback):
    """Replaces the batch norms when a fit begins, as DDP does with trainer.sync_batchnorm."""

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        nn.SyncBatchNorm.convert_sync_batchnorm(pl_module)


def fit(
    net: nn.Module,
    train: list[Images],
    val: list[Images] | None = None,
    *callbacks: Callback,
    folder: Path | None = None,
    ckpt_path: Path | None = None,
    **options: Any,
) -> tuple[Trainer, Classifier]:
    """options: of the Classifier, or of the Trainer (those in `TRAINER`)."""
    settings = {"label_smoothing": 0.0, "optimizer": OPTIMIZER, "schedule": partial(cosine, warmup_epochs=0.5)}
    trainer_options = {name: options.pop(name, usual) for name, usual in TRAINER.items()}
    module = Classifier(net, **settings | options)
    trainer = quiet_trainer(
        default_root_dir=folder, num_sanity_val_steps=0, callbacks=list(callbacks), **trainer_options
    )
    trainer.fit(module, Loader(train), Loader(val or batches(1)), ckpt_path=ckpt_path, weights_only=True)
    return trainer, module
