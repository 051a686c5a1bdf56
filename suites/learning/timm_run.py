"""One training run with timm's own functions, put together as in timm's training script."""

import time
from pathlib import Path

import timm
import torch
from timm.data import create_dataset, create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import AverageMeter, accuracy, random_seed
from torch import nn
from torch.optim import Optimizer

from suites.learning.recipe import CROP_SCALE, MOMENTUM, SMOOTHING, WEIGHT_DECAY, Learned, Recipe

CPU = torch.device("cpu")


def train(recipe: Recipe, root: Path, num_classes: int, seed: int) -> Learned:
    random_seed(seed)
    network = timm.create_model(recipe.model, num_classes=num_classes).to(memory_format=torch.channels_last)
    batches = _batches(recipe, root, "train")
    optimizer = create_optimizer_v2(network, "sgd", lr=recipe.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    scheduler = scheduler_of(optimizer, recipe, len(batches))
    loss_of = LabelSmoothingCrossEntropy(SMOOTHING)
    began, num_updates = 0.0, 0
    for _ in range(recipe.epochs):
        network.train()
        for images, labels in batches:
            loss = loss_of(network(images.contiguous(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_updates += 1
            scheduler.step_update(num_updates)
            began = began or time.perf_counter()
    seconds = time.perf_counter() - began
    rate = (num_updates - 1) * recipe.batch_size / seconds
    return Learned(_top1(network, _batches(recipe, root, "val")), rate)


def scheduler_of(optimizer: Optimizer, recipe: Recipe, steps_per_epoch: int) -> Scheduler:
    """timm's cosine by step, behind a warmup that begins as this project's does: above 0, by equal steps."""
    scheduler, _ = create_scheduler_v2(
        optimizer,
        "cosine",
        num_epochs=recipe.epochs - recipe.warmup,
        warmup_epochs=recipe.warmup,
        warmup_lr=recipe.lr / (recipe.warmup * steps_per_epoch + 1),
        warmup_prefix=True,
        step_on_epochs=False,
        updates_per_epoch=steps_per_epoch,
    )
    return scheduler


def _batches(recipe: Recipe, root: Path, split: str) -> torch.utils.data.DataLoader:
    is_training = split == "train"
    return create_loader(
        create_dataset("", root=str(root), split=split, is_training=is_training, batch_size=recipe.batch_size),
        input_size=(3, recipe.image_size, recipe.image_size),
        batch_size=recipe.batch_size,
        is_training=is_training,
        scale=CROP_SCALE,
        color_jitter=0.0,
        interpolation="bilinear",
        crop_pct=1.0,
        num_workers=recipe.workers,
        device=CPU,
    )


@torch.no_grad()
def _top1(network: nn.Module, batches: torch.utils.data.DataLoader) -> float:
    network.eval()
    top1 = AverageMeter()
    for images, labels in batches:
        hits = accuracy(network(images.contiguous(memory_format=torch.channels_last)), labels)[0]
        top1.update(hits.item(), len(labels))
    return float(top1.avg)
