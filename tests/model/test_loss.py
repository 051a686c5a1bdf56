"""Losses against timm's and torch's, what they make of mixed images, and their sums."""

import pytest
import torch
from timm.loss import BinaryCrossEntropy
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from imagenet_opt.model.loss import ClassificationMetrics, losses_of

LOGITS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 0, 9, 3, 3, 7])
MIXED = 0.7 * nn.functional.one_hot(LABELS, 10) + 0.3 * nn.functional.one_hot(LABELS.flip(0), 10)


@pytest.mark.parametrize("labels", [LABELS, MIXED])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_bce_is_timms_which_smooths_before_it_mixes(
    labels: torch.Tensor, smoothing: float, threshold: float | None
) -> None:
    smoothed = labels if labels.ndim == 1 else labels * (1 - smoothing) + smoothing / 10
    expected = BinaryCrossEntropy(smoothing=smoothing, target_threshold=threshold)(LOGITS, smoothed)
    losses = losses_of(LOGITS, labels, loss="bce_mean", smoothing=smoothing, target_threshold=threshold)
    torch.testing.assert_close(losses.mean(), expected)


def test_the_sum_over_classes_is_composers_and_c_times_the_mean() -> None:
    hot = nn.functional.one_hot(LABELS, 10).float()
    expected = binary_cross_entropy_with_logits(LOGITS, hot * 0.92 + 0.008, reduction="sum") / len(LABELS)
    losses = losses_of(LOGITS, LABELS, loss="bce_sum", smoothing=0.08)
    torch.testing.assert_close(losses.mean(), expected)
    torch.testing.assert_close(losses, 10 * losses_of(LOGITS, LABELS, loss="bce_mean", smoothing=0.08))


def test_soft_labels_count_by_their_larger_share() -> None:
    tally = ClassificationMetrics(torch.device("cpu"))
    soft = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    tally.add(torch.ones(2), torch.tensor([[3.0, 1, 1], [1.0, 3, 1]]), soft, torch.ones(2, dtype=torch.bool))
    assert tally.read()["acc1"] == 0.5
