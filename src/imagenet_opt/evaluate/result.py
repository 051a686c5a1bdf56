"""Results of an evaluation: sums over batches, measures, tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from imagenet_opt.data.batch import Batch
from imagenet_opt.display.table import Column, Table
from imagenet_opt.evaluate.view import View
from imagenet_opt.measure.stats.intervals import share_interval

_BINS = 15
"""Number of confidence bins of the calibration error, as in the paper that introduced this error."""


@dataclass(frozen=True)
class Result:
    """Shares from 0 to 1. top5: None with five classes or fewer. nll: mean negative log-likelihood, in nats.
    calibration_error: see `Sums`. correct, images: numbers for each class. num_logits: of the network. precision: of
    the network, Lightning's name."""

    top1: float
    top5: float | None
    nll: float
    calibration_error: float
    correct: list[int]
    images: list[int]
    num_logits: int
    precision: str = "32-true"


def tables(result: Result, classes: Sequence[str], name: str, view: View, *, by_class: bool) -> list[Table]:
    """Tables of the result. by_class: whether to add the accuracy of each class, the lowest first."""
    low, high = share_interval(result.top1, num := sum(result.images))
    unit = f"% of {num:,} images, 95 % interval {100 * low:.2f} to {100 * high:.2f}"
    rows = [("top-1 accuracy", 100 * result.top1, unit)]
    if result.top5 is not None:
        rows.append(("top-5 accuracy", 100 * result.top5, "%"))
    rows += [
        ("negative log-likelihood", result.nll, "nats"),
        ("calibration error", 100 * result.calibration_error, "%, mean distance of confidence and accuracy"),
    ]
    title = f"{name}, {view.image_size} px {view.interpolation}, crop {view.crop_ratio:.3g}"
    title += ", with the mirror image" * view.tta + f", {result.precision}"
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


class Sums:
    """Sums over batches, on the device.

    The calibration error is the mean distance of confidence and accuracy over 15 bins of equal width, weighted by the
    number of images in a bin (Guo et al., arXiv 1706.04599). num_logits: see `Result`.
    """

    def __init__(self, num_classes: int, num_logits: int, device: torch.device) -> None:
        self.num_classes, self.num_logits = num_classes, num_logits
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
            num_logits=self.num_logits,
        )
