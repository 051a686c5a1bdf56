"""The full trainer against a bare PyTorch loop: same network, batches and optimizer, logging off, interleaved.

    python suites/benchmarks/trainer_vs_loop.py [--steps 30] [--repeats 5] [--workers 1]

Prints images per second of each repeat after a warm-up, their medians, and the ratio of each pair.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as train.py does

import argparse
import logging
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2]))

from callbacks.throughput import Throughput
from imagenet_opt.data.datamodule import cache_folder, demo_data
from imagenet_opt.data.loader import RankInfo, open_index, train_loader
from imagenet_opt.machine import usable_cpus, versions
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.model.schedule import cosine
from tests.conftest import loading, loading_options

BATCH, SIZE, WARMUP = 50, 64, 5
LOADING = dict(batch_size=BATCH, image_size=SIZE, prefetch_factor=4, crop_scale=(0.35, 1.0), seed=0)


def optimizer_of(network: torch.nn.Module, device: torch.device) -> torch.optim.Optimizer:
    options = dict(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4, fused=None, global_batch=BATCH)
    return build_optimizer(network, device=device, **options)


class Stopwatch(Callback):
    """When the warm-up ended and when the last step did."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.global_step == WARMUP:
            self.began = time.perf_counter()
        if trainer.global_step == self.num_steps:
            self.seconds = time.perf_counter() - self.began


def with_trainer(num_steps: int, workers: int) -> float:
    """Images per second of Lightning's loop with Classifier, ImageData and the throughput callback."""
    seed_everything(0, verbose=False)
    data = demo_data(**loading_options(num_workers=workers, **LOADING))
    watch = Stopwatch(num_steps)
    model = Classifier(
        build_network("resnet10t", num_classes=10),
        optimizer=optimizer_of,
        schedule=partial(cosine, warmup_epochs=0),
        label_smoothing=0.0,
    )
    trainer = Trainer(
        accelerator="cpu",
        max_steps=num_steps,
        callbacks=[Throughput(), watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
    )
    trainer.fit(model, datamodule=data)
    return BATCH * (num_steps - WARMUP) / watch.seconds


def bare(num_steps: int, workers: int) -> float:
    """Images per second of a loop written out."""
    seed_everything(0, verbose=False)
    device = torch.device("cpu")
    index = open_index(cache_folder(None) / "demo-2000-400", "train", cache_folder(None))
    batches = train_loader(index, loading(num_workers=workers, **LOADING), RankInfo(device=device))
    network = build_network("resnet10t", num_classes=10).train()
    optimizer = optimizer_of(network, device)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(cosine, num_steps=num_steps, steps_per_epoch=40))
    step = 0
    while True:
        for batch in batches:
            loss = cross_entropy(network(batch.images), batch.labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            step += 1
            if step == WARMUP:
                began = time.perf_counter()
            if step == num_steps:
                return BATCH * (num_steps - WARMUP) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"{usable_cpus()} CPUs, {versions()}")
    print("repeat  trainer  bare  ratio   (images/s)")
    rows = []
    for repeat in range(args.repeats):
        rates = {}
        for run in (with_trainer, bare) if repeat % 2 else (bare, with_trainer):  # neither always comes second
            rates[run] = run(args.steps, args.workers)
        rows.append((rates[with_trainer], rates[bare], rates[with_trainer] / rates[bare]))
        print("{:6}  {:7.1f}  {:4.1f}  {:.3f}".format(repeat, *rows[-1]))
    print("median  {:7.1f}  {:4.1f}  {:.3f}".format(*(median(column) for column in zip(*rows, strict=True))))


if __name__ == "__main__":
    main()
