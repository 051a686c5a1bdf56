"""Evaluates a network on the validation images: accuracy, loss, and their tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from imagenet_opt.data.index.split import Split
from imagenet_opt.data.loader import RankInfo, eval_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.evaluate.network import DTYPES, FLOAT32, Network, View, logits_of
from imagenet_opt.measure.stats.intervals import share_interval
from imagenet_opt.model.network import check_image_size
from imagenet_opt.model.saved_network import on_device


@dataclass(frozen=True)
class Result:
    """Shares from 0 to 1. top5: None with five classes or fewer. nll: mean negative log-likelihood, in nats.
    correct, images: numbers for each class. num_logits, precision (Lightning's name): of the network."""

    top1: float
    top5: float | None
    nll: float
    correct: list[int]
    images: list[int]
    num_logits: int
    precision: str = FLOAT32


def evaluate(
    network: Network,
    val: Split,
    loading: LoaderOptions,
    view: View,
    *,
    precision: str = FLOAT32,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Evaluate on all images of `val`, on the GPU if there is one. Only the logits of the classes of `val` count.

    With view.tta, the logits are the mean for an image and its mirror image. precision: Lightning's. on_progress:
    called with (images done, images in all). Raises DataError, CheckpointMismatch if the network does not know the
    classes of `val`, ConfigError for another precision, or if the network takes only images of another size.
    """
    if precision not in DTYPES:
        raise ConfigError(f"trainer.precision={precision} cannot be evaluated; set one of {', '.join(DTYPES)}")
    check_image_size(network.net, view.image_size)
    options = replace(
        loading,
        val_image_size=view.image_size,
        val_crop_ratio=view.crop_ratio,
        val_interpolation=view.interpolation,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sums, done = _Sums(len(val.classes), device), 0
    on_progress(0, len(val))
    for logits, labels in predictions(network, val, options, device, precision=precision, tta=view.tta):
        sums.add(logits, labels)
        on_progress(done := done + len(labels), len(val))
    on_progress(len(val), len(val))
    return sums.result(network.num_classes, precision)


@torch.inference_mode()
def predictions(
    network: Network,
    split: Split,
    loading: LoaderOptions,
    device: torch.device,
    *,
    precision: str = FLOAT32,
    tta: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of the classes of `split`, float32 (N, C), and labels, int64 (N,), of each batch, without bad images. tta:
    the mean for an image and its mirror image. Raises CheckpointMismatch for classes that the network does not know."""
    dtype, autocast = DTYPES[precision]
    used = torch.tensor(logits_of(split.classes, network.classes, network.num_classes), device=device)
    options = replace(loading, batch_size=min(loading.batch_size, len(split)), max_bad_fraction=1.0)
    net = on_device(network.net.to(dtype), device)
    with closing(eval_loader(split, options, RankInfo(device=device))) as loader:
        for batch in loader:
            images = batch.images.to(dtype)
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                logits = net(images).float()
                if tta:
                    logits = (logits + net(images.flip(-1)).float()) / 2
            yield logits[:, used][batch.valid], batch.labels[batch.valid]


class _Sums:
    """Sums over batches, on the device."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self._classes = torch.zeros(2, num_classes, dtype=torch.int64, device=device)
        self._totals = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """logits: float32 (N, C). labels: int64 (N,)."""
        best = logits.topk(min(5, self.num_classes), dim=1).indices
        hits = best == labels[:, None]
        self._classes.index_add_(1, labels, torch.stack([hits[:, 0].long(), torch.ones_like(labels)]))
        losses = cross_entropy(logits, labels, reduction="sum")
        self._totals += torch.stack([hits.any(1).sum(), losses]).double()

    def result(self, num_logits: int, precision: str) -> Result:
        """Shares and means; one copy to the host."""
        (correct, images), (top5, nll) = self._classes.tolist(), self._totals.tolist()
        num = sum(images)
        top5 = top5 / num if self.num_classes > 5 else None
        return Result(sum(correct) / num, top5, nll / num, correct, images, num_logits, precision)


def tables(result: Result, classes: Sequence[str], name: str, view: View, *, by_class: bool) -> list[Table]:
    """Tables of the result. by_class: whether to add the accuracy of each class, the lowest first."""
    low, high = share_interval(result.top1, num := sum(result.images))
    unit = f"% of {num:,} images, 95 % interval {100 * low:.2f} to {100 * high:.2f}"
    rows = [("top-1 accuracy", 100 * result.top1, unit)]
    if result.top5 is not None:
        rows.append(("top-5 accuracy", 100 * result.top5, "%"))
    rows.append(("negative log-likelihood", result.nll, "nats"))
    title = f"{name}, {view.image_size} px {view.interpolation}, crop {view.crop_ratio:.3g}"
    title += f", with the mirror image, {result.precision}" if view.tta else f", {result.precision}"
    if len(classes) < result.num_logits:
        title += f", logits restricted to {len(classes)} of {result.num_logits} classes"
    columns = (Column("measure"), Column("value", "{:.2f}"), Column("unit"))
    tables = [Table(title, columns, tuple(rows))]
    if by_class:
        counts = zip(classes, result.correct, result.images, strict=True)
        shares = [(100 * hits / images, label, float(images)) for label, hits, images in counts if images]
        columns = (Column("class"), Column("top-1 %", "{:.1f}"), Column("images", "{:.0f}"))
        lowest_first = tuple((label, share, images) for share, label, images in sorted(shares))
        tables.append(Table("Accuracy by class", columns, lowest_first))
    return tables
