"""The callbacks in a Lightning project of your own: python examples/lightning_callbacks.py

The module and the loader know nothing of this package. The same command resumes, with a larger `max_epochs`.

Acceleration, Mixing and ResolutionSchedule change images: they need batches that are lists [images, labels], or dicts
or objects with `images` and `labels`, and refuse others in one line. The other callbacks take any batch. Rehearsal is
left out: it simulates an accelerator in place of training.
"""

from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.early_stop import EarlyStop
from imagenet_opt.callbacks.ema import Ema
from imagenet_opt.callbacks.gpu_utilization import GpuUtilization
from imagenet_opt.callbacks.mixing import Mixing
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.callbacks.profiler import Profiler
from imagenet_opt.callbacks.progress_bar import ProgressBar
from imagenet_opt.callbacks.resolution_schedule import ResolutionSchedule
from imagenet_opt.callbacks.throughput import Throughput
from imagenet_opt.callbacks.timeline import Timeline

FOLDER = Path("runs/own_project")


class MyData(Dataset[dict[str, Tensor]]):
    """Noise in ten colours."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        image = torch.randn(3, 32, 32) + torch.tensor([i % 2, i % 5, 0.0])[:, None, None]
        return {"images": image, "labels": torch.tensor(i % 10)}


class MyModule(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
        )

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch["images"]), batch["labels"])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        right = self.net(batch["images"]).argmax(1) == batch["labels"]
        self.log("val/acc1", right.float().mean(), batch_size=len(right))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def callbacks() -> list[pl.Callback]:
    """Take those that you need; of their order only ResolutionSchedule before Acceleration matters."""
    return [
        # change the training
        Mixing(num_classes=10, mode="on"),
        ResolutionSchedule(start=24, end=32, step=8),
        Acceleration(network="net"),
        Ema(decay=0.99),
        EarlyStop("val/acc1", stopping_threshold=0.99),
        # save it and end it
        Checkpoint(folder=str(FOLDER), monitor="val/acc1"),
        Preemption(),
        # measure and show it
        Throughput(),
        GpuUtilization(),
        Bottleneck(),
        Timeline(folder=FOLDER),
        Profiler(folder=FOLDER, start_step=10, num_steps=3),
        ProgressBar(),
    ]


def main() -> None:
    used = callbacks()
    trainer = pl.Trainer(
        max_epochs=2,
        logger=CSVLogger(FOLDER),
        default_root_dir=FOLDER,
        log_every_n_steps=20,
        callbacks=used,
    )
    train, val = DataLoader(MyData(), batch_size=16, shuffle=True), DataLoader(MyData(), batch_size=64)
    last = FOLDER / "last.ckpt"
    trainer.fit(MyModule(), train, val, ckpt_path=last if last.exists() else None)
    for callback in used:
        for name, value in getattr(callback, "summary", dict)().items():
            print(f"{name:40} {value:.4g}")


if __name__ == "__main__":
    main()
