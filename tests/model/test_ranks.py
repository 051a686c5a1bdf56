"""Two processes train one network: with equal weights, and with random numbers of their own."""

from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn

from tests.model.conftest import Images, batches, fit, network
from tests.processes import on_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*sync_dist=True"),  # which the sums of a validation do not need
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def fit_as_rank(net: nn.Module, train: list[Images], **options: Any) -> list[Tensor]:
    fit(net, train, devices=2, strategy="ddp", use_distributed_sampler=False, **options)
    return [parameter.detach() for parameter in net.parameters()]


def test_micro_batches_train_two_processes_as_one_with_both_batches() -> None:
    def work(rank: int) -> list[Any]:
        return [weight.tolist() for weight in fit_as_rank(network(), batches(4, seed=rank), micro_batch_size=2)]

    pairs = zip(batches(4, seed=0), batches(4, seed=1), strict=True)
    whole = [Images(**{key: torch.cat([vars(a)[key], vars(b)[key]]) for key in vars(a)}) for a, b in pairs]
    _, alone = fit(network(), whole)
    first, second = on_ranks(work)
    assert first == second
    for weights, expected in zip(first, alone.net.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(weights), expected.detach(), rtol=1e-4, atol=1e-5)


class Masks(nn.Dropout):
    """Dropout that keeps which numbers it left out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[bool]] = []

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.seen.append((super().forward(torch.ones_like(features)) == 0).flatten().tolist())
        return super().forward(features)


def masks_and_weights(rank: int) -> tuple[list[Any], list[Any]]:
    """Masks of each step, and weights at the end."""
    seed_everything(0, verbose=False)
    masks = Masks()
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), masks, nn.Linear(8, 3))
    return masks.seen, [weight.tolist() for weight in fit_as_rank(net, batches(3))]


def test_each_process_drops_out_its_own() -> None:
    """tests/end_to_end/test_resume.py resumes such processes."""
    (first, weights), (second, others) = on_ranks(masks_and_weights)
    assert weights == others
    assert len(first) == len(second) == 6
    assert all(mine != theirs for mine, theirs in zip(first, second, strict=True))
