"""The loader in a Lightning project of your own: python examples/lightning_loader.py [DATA_FOLDER]

DATA_FOLDER has train/<class>/*.jpg and val/<class>/*.jpg; without it, the images of the demo are used. A run that is
stopped inside an epoch continues at the next batch after its last checkpoint when you start it again.
"""

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import imagenet_opt
from imagenet_opt.data.batch import Batch
from imagenet_opt.data.datamodule import demo_folder
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.prefetcher import DevicePrefetcher

FOLDER = Path("runs/lightning_loader")
SIZE = {"image_size": 48, "batch_size": 50, "crop_scale": (0.35, 1.0)}


class MyData(pl.LightningDataModule):
    """Passes on the loader's state, because Lightning does not restore it when `estimated_stepping_batches` has made
    the loader before."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def setup(self, stage: str) -> None:
        device = self.trainer.strategy.root_device
        self.train = imagenet_opt.loader(self.root, device=device, **SIZE)
        self.val = imagenet_opt.loader(self.root, split="val", device=device, **SIZE)

    def train_dataloader(self) -> DevicePrefetcher:
        return self.train

    def val_dataloader(self) -> DevicePrefetcher:
        return self.val

    def state_dict(self) -> dict[str, Any]:
        return self.train.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.train.load_state_dict(state_dict)

    def teardown(self, stage: str) -> None:
        self.train.close()
        self.val.close()


class MyModule(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = timm.create_model("resnet10t", num_classes=10)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        right = self.net(images).argmax(1) == labels
        self.log("accuracy", right.float().mean(), batch_size=len(right), sync_dist=True)

    def on_validation_end(self) -> None:
        print(f"accuracy {100 * float(self.trainer.callback_metrics['accuracy']):.1f} %")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    root = Path(sys.argv[1]) if sys.argv[1:] else demo_folder(cache_folder(None), 2000, 400)
    trainer = pl.Trainer(
        max_epochs=2,
        logger=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the loader shares its images between processes itself
        callbacks=[ModelCheckpoint(FOLDER, every_n_train_steps=10, save_last=True)],
    )
    last = FOLDER / "last.ckpt"
    trainer.fit(MyModule(), datamodule=MyData(root), ckpt_path=last if last.exists() else None, weights_only=True)


if __name__ == "__main__":
    main()
