"""Sums on the device against plain arithmetic."""

import pytest
import torch

from imagenet_opt.model.classification_metrics import ClassificationMetrics


def test_means_over_batches_leave_padding_out() -> None:
    torch.manual_seed(0)
    tally = ClassificationMetrics(torch.device("cpu"))
    losses, hits1, hits5 = [], [], []
    for _ in range(4):
        logits, labels = torch.randn(6, 9), torch.randint(0, 9, (6,))
        loss, valid = torch.rand(6), torch.rand(6) > 0.3
        tally.add(loss, logits, labels, valid)
        for row in valid.nonzero().flatten().tolist():
            ranked = logits[row].argsort(descending=True).tolist()
            losses.append(loss[row].item())
            hits1.append(ranked[0] == labels[row])
            hits5.append(labels[row].item() in ranked[:5])
    means = tally.read()
    assert means["loss"] == pytest.approx(sum(losses) / len(losses))
    assert means["acc1"] == pytest.approx(sum(hits1) / len(hits1))
    assert means["acc5"] == pytest.approx(sum(hits5) / len(hits5))


VALID = torch.ones(2, dtype=torch.bool)


def test_soft_labels_count_by_their_larger_share() -> None:
    tally = ClassificationMetrics(torch.device("cpu"))
    soft = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    tally.add(torch.ones(2), torch.tensor([[3.0, 1, 1], [3.0, 1, 1]]), soft, VALID)
    assert tally.read()["acc1"] == 0.5
