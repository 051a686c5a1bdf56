"""Data, model and trainer from keyword arguments, without Hydra: python examples/own_trainer.py [DATA_FOLDER]

DATA_FOLDER has train/<class>/*.jpg and val/<class>/*.jpg; without it, the images of the demo are used.
"""

import sys
from functools import partial

import lightning.pytorch as pl

from imagenet_opt.callbacks.throughput import Throughput
from imagenet_opt.data.datamodule import demo_data, folder_data
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.model.schedule import cosine

BATCH_SIZE = 50


def main() -> None:
    size = {"batch_size": BATCH_SIZE, "image_size": 48}
    data = folder_data(root=sys.argv[1], **size) if sys.argv[1:] else demo_data(**size)
    net = build_network("resnet10t", num_classes=data.num_classes)
    sgd = partial(build_optimizer, name="sgd", lr=0.5, weight_decay=5e-5, momentum=0.9, global_batch=BATCH_SIZE)
    model = Classifier(net, optimizer=sgd, schedule=partial(cosine, warmup_epochs=1), batch_size=BATCH_SIZE)
    trainer = pl.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,  # the data shares its images between processes itself
        callbacks=[Throughput()],
    )
    trainer.fit(model, datamodule=data)
    print(f"accuracy {100 * float(trainer.callback_metrics['val/acc1']):.1f} %")


if __name__ == "__main__":
    main()
