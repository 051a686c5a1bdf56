"""The callbacks in a Lightning project of your own: python examples/lightning_callbacks.py

The module and the loader know nothing of this package. The callbacks measure how long the loop waits for data, and save
checkpoints that resume exactly.
"""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.throughput import Throughput


class MyModule(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(10, (512,)))
    throughput = Throughput()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="auto",
        logger=False,
        callbacks=[throughput, Checkpoint(folder="runs/own_project")],
    )
    trainer.fit(MyModule(), DataLoader(data, batch_size=16, shuffle=True))
    for name, value in throughput.summary().items():
        print(f"{name:40} {value:.4g}")


if __name__ == "__main__":
    main()
