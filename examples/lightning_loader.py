"""A LightningModule that knows nothing of this package: python examples/lightning_loader.py DATA_FOLDER

DATA_FOLDER has train/<class>/*.jpg. Stop it and start it again: it resumes at the next batch after its last checkpoint.
The first start warns that there is none yet.
"""

import sys

import lightning.pytorch as pl
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import imagenet_opt


class MyModule(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = timm.create_model("resnet10t", num_classes=10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


with imagenet_opt.loader(sys.argv[1], batch_size=50, image_size=48) as train:
    save = ModelCheckpoint("runs/lightning_loader", every_n_train_steps=1, save_last=True)
    trainer = pl.Trainer(max_epochs=2, logger=False, use_distributed_sampler=False, callbacks=[save])
    trainer.fit(MyModule(), train, ckpt_path="last", weights_only=True)
    print(f"trained {trainer.global_step} steps")
