"""Evaluates a network on the validation images: accuracy, loss and calibration, over all images and by class."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.index.folder_index import Split
from imagenet_opt.data.loader import RankInfo, eval_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.transforms.normalize import MEAN, STD
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import CheckpointMismatch, ConfigError, did_you_mean
from imagenet_opt.model.network import pretrained_network
from imagenet_opt.model.saved_network import open_network

_BINS = 15
"""Of the calibration error, as in its source."""


@dataclass(frozen=True)
class View:
    """What the network sees of an image: image_size: pixels of a side. crop_ratio: side of the centred crop, as a share
    of the shorter side. tta: whether the mirror image is classified too (test-time augmentation)."""

    image_size: int
    crop_ratio: float
    tta: bool = False


CONVENTIONS = {
    "torchvision": View(224, 224 / 256),
    "torchvision_v2": View(224, 224 / 232),
    "timm": View(224, 0.95),
    "ffcv": View(256, 0.875, tta=True),
    "mosaic": View(224, 224 / 232),
    "nvidia": View(224, 224 / 256),
    "mlperf": View(224, 224 / 256),
}
"""Name of a project -> how it evaluates. FFCV resizes by averaging areas, and many weights of timm by bicubic
interpolation; here all images are resized bilinearly."""


@dataclass(frozen=True)
class Network:
    """net: in evaluation mode. mean, std: of RGB in [0, 1], with which it expects its images normalised."""

    net: nn.Module
    num_classes: int
    image_size: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    crop_ratio: float | None = None


@dataclass(frozen=True)
class Result:
    """Shares from 0 to 1. top5: None with five classes or fewer. nll: mean negative log-likelihood, in nats.
    calibration_error: see `Sums`. correct, images: of each class."""

    top1: float
    top5: float | None
    nll: float
    calibration_error: float
    correct: list[int]
    images: list[int]

    @property
    def top1_margin(self) -> float:
        """Half of the 95 % interval of top1 for another draw of as many images (normal approximation)."""
        return float(1.96 * (self.top1 * (1 - self.top1) / sum(self.images)) ** 0.5)


def saved(ckpt: Path) -> Network:
    """The network of a checkpoint of train.py; averaged weights if the run kept them. Raises CheckpointError."""
    net, config, _ = open_network(ckpt)
    return Network(net, config["num_classes"], config["image_size"])


def pretrained(name: str) -> Network:
    """timm's network with timm's weights. Raises UnknownModel, ModelError."""
    net = pretrained_network(name).eval()
    facts: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    return Network(
        net, facts["num_classes"], facts["input_size"][-1], facts["mean"], facts["std"], facts.get("crop_pct")
    )


def view_of(network: Network, loading: LoaderOptions, convention: str | None, *, tta: bool) -> View:
    """The view of a convention, or the configured one. Raises ConfigError for an unknown convention."""
    if convention is None:
        size = loading.val_image_size or network.image_size
        return View(size, network.crop_ratio or loading.val_crop_ratio, tta)
    if convention not in CONVENTIONS:
        hint = did_you_mean(convention, CONVENTIONS, f"expected {', '.join(CONVENTIONS)}")
        raise ConfigError(f"eval={convention} is not known; {hint}")
    view = CONVENTIONS[convention]
    return replace(view, tta=view.tta or tta)


def evaluate(
    network: Network,
    val: Split,
    loading: LoaderOptions,
    view: View,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Evaluate on all images of `val`, on the GPU if there is one.

    With view.tta, the logits are the mean of those of an image and of its mirror image. on_progress: called with
    (images done, images in all). Raises CheckpointMismatch if the data has another number of classes, and DataError.
    """
    if network.num_classes != len(val.classes):
        raise CheckpointMismatch(
            f"the network has {network.num_classes} classes, the validation images have {len(val.classes)}; choose the "
            "data that it was trained on (data.root), or another ckpt="
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = replace(loading, batch_size=min(loading.batch_size, len(val)), max_bad_fraction=1.0)
    options = replace(options, val_image_size=view.image_size, val_crop_ratio=view.crop_ratio)
    net, sums, done = network.net.to(device), Sums(network.num_classes, device), 0
    convert = _converter(network, device)
    loader = eval_loader(val, options, RankInfo(device=device))
    try:
        for batch in loader:
            with torch.inference_mode():
                images = convert(batch.images)
                logits = net(images).float()
                if view.tta:
                    logits = (logits + net(images.flip(-1)).float()) / 2
                sums.add(logits, batch)
            on_progress(done := min(done + len(batch.labels), len(val)), len(val))
    finally:
        loader.close()
    return sums.result()


def tables(result: Result, classes: Sequence[str], name: str, view: View, *, by_class: bool) -> list[Table]:
    """Tables of the result. by_class: whether to add the accuracy of each class, the lowest first."""
    num, margin = sum(result.images), 100 * result.top1_margin
    rows = [
        ("top-1 accuracy", 100 * result.top1, f"% of {num:,} images, +- {margin:.2f} (95 % interval)"),
        ("top-5 accuracy", 100 * (result.top5 or math.nan), "%"),
        ("negative log-likelihood", result.nll, "nats"),
        ("calibration error", 100 * result.calibration_error, "%, mean distance of confidence and accuracy"),
    ]
    cut = f"{view.image_size} px, crop {view.crop_ratio:.3g}{', with the mirror image' * view.tta}"
    columns = (Column("measure"), Column("value", "{:.2f}"), Column("unit"))
    tables = [Table(f"{name}, {cut}", columns, tuple(row for row in rows if not math.isnan(row[1])))]
    if by_class:
        counts = zip(classes, result.correct, result.images, strict=True)
        shares = [(100 * hits / images, label, float(images)) for label, hits, images in counts if images]
        columns = (Column("class"), Column("top-1 %", "{:.1f}"), Column("images", "{:.0f}"))
        lowest_first = tuple((label, share, images) for share, label, images in sorted(shares))
        tables.append(Table("Accuracy by class", columns, lowest_first))
    return tables


class Sums:
    """Sums over batches, on the device.

    The calibration error is the mean distance of confidence and accuracy over 15 bins of equal width, weighted by their
    images (Guo et al., arXiv 1706.04599).
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self._classes = torch.zeros(2, num_classes, dtype=torch.int64, device=device)
        self._bins = torch.zeros(3, _BINS, dtype=torch.float64, device=device)
        self._totals = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, logits: Tensor, batch: Batch) -> None:
        """logits: float32 (N, C). batch: labels int64 (N,), valid bool (N,)."""
        logits, labels = logits[batch.valid], batch.labels[batch.valid]
        confidence, chosen = logits.softmax(1).max(1)
        hits = chosen == labels
        self._classes.index_add_(1, labels, torch.stack([hits.long(), torch.ones_like(labels)]))
        bins = (confidence * _BINS).long().clamp(max=_BINS - 1)
        self._bins.index_add_(1, bins, torch.stack([torch.ones_like(confidence), confidence, hits.float()]).double())
        best = logits.topk(min(5, self.num_classes), dim=1).indices
        losses = cross_entropy(logits, labels, reduction="sum")
        self._totals += torch.stack([(best == labels[:, None]).any(1).sum(), losses]).double()

    def result(self) -> Result:
        """Shares and means; one copy to the host."""
        (correct, images), (counts, confidence, hits) = self._classes.tolist(), self._bins.cpu()
        num, (top5, nll) = sum(images), self._totals.tolist()
        return Result(
            top1=sum(correct) / num,
            top5=top5 / num if self.num_classes > 5 else None,
            nll=nll / num,
            calibration_error=float((confidence - hits).abs().sum() / counts.sum()),
            correct=correct,
            images=images,
        )


def _converter(network: Network, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From images normalised by ImageNet's mean and deviation to those that the network expects."""
    if (tuple(network.mean), tuple(network.std)) == (MEAN, STD):
        return lambda images: images
    ours, theirs = (
        [torch.tensor(values, device=device).view(1, 3, 1, 1) for values in pair]
        for pair in ((MEAN, STD), (network.mean, network.std))
    )
    return lambda images: (images * ours[1] + ours[0] - theirs[0]) / theirs[1]
