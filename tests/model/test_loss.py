"""Losses against timm's and torch's, and what they make of mixed images."""

import math

import pytest
import torch
from timm.loss import BinaryCrossEntropy
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from imagenet_opt.data.transforms.mix import mix_labels
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.loss import check_loss, losses_of, start_bias

LOGITS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 0, 9, 3, 3, 7])


@pytest.mark.parametrize("labels", [LABELS, mix_labels(LABELS, 0.7, 10)])
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


def test_cross_entropy_is_torchs() -> None:
    expected = cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=0.1)
    assert torch.equal(losses_of(LOGITS, LABELS, loss="cross_entropy", smoothing=0.1), expected)


def test_the_head_starts_at_equal_probabilities() -> None:
    head = nn.Linear(4, 1000)
    start_bias(head, 1000)
    assert head.bias.tolist() == pytest.approx([-math.log(1000)] * 1000)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("focal", 0.1, None), "model.loss=focal must be one of cross_entropy"),
        (("bce_mean", 1.0, None), "model.label_smoothing=1.0"),
        (("cross_entropy", 0.1, 0.2), "model.target_threshold=0.2 .* model.loss=bce_mean"),
        (("bce_sum", 0.1, 1.0), "model.target_threshold=1.0"),
    ],
)
def test_values_out_of_range_are_named(values: tuple[str, float, float | None], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_loss(*values)
