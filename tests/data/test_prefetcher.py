"""The prefetcher: batches in order to the end, and metrics of the loader."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from tests.data.conftest import MakeLoader, batches

KEYS = {
    "read_seconds",
    "decode_seconds",
    "cpu_wait_seconds",
    "mb_read",
    "reads_in_flight",
    "queue_depth",
    "queue_seconds",
    "skipped",
}
KEYS |= {"retries", "throttled"}


@pytest.mark.parametrize("workers", [0, 1])
def test_order_and_length_hold_in_the_middle_of_an_epoch(images_root: Path, loader: MakeLoader, workers: int) -> None:
    made = loader(images_root, num_workers=workers)
    made.sampler.seek(2, 4)
    made.sampler.set_epoch(2)
    assert [batch.key[:2] for batch in made] == [(2, 4), (2, 5)]
    assert len(made) == 6
    assert [batch.key[:2] for batch in made] == [(3, step) for step in range(6)]  # the next epoch
    assert [batch.key[:2] for batch in itertools.islice(made, 2)] == [(4, 0), (4, 1)]
    assert [made.state_dict()[name] for name in ("epoch", "step")] == [4, 2]
    assert [batch.key[:2] for batch in itertools.islice(made, 6)] == [(4, step) for step in range(6)]
    assert next(iter(made)).key[:2] == (5, 0)  # epoch 4 has come to its end, without a seventh request
    for _ in range(2):
        made.set_epoch(2)
        assert [batch.key[:2] for batch in made] == [(2, step) for step in range(6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_ends_with_an_error_when_a_later_one_begins(
    images_root: Path, loader: MakeLoader, workers: int
) -> None:
    made = loader(images_root, num_workers=workers)
    first, second = iter(made), iter(made)
    assert next(first).key[:2] == next(second).key[:2] == (0, 0)
    with pytest.raises(RuntimeError, match="a later iteration of this loader"):
        next(first)
    assert [batch.key[:2] for batch in second] == [(0, step) for step in range(1, 6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_metrics_are_means_over_new_batches(images_root: Path, loader: MakeLoader, workers: int) -> None:
    made = loader(images_root, num_workers=workers)
    assert made.pop_metrics() == {}
    indices = torch.cat([batch.indices for batch in batches(made)])
    sizes = [os.path.getsize(made.loader.dataset.reader.store.name(i)) for i in indices.tolist()]
    metrics = made.pop_metrics()
    assert set(metrics) == {f"loader/{key}" for key in KEYS}
    assert metrics["loader/mb_read"] == pytest.approx(sum(sizes) / 1e6 / len(made), rel=1e-6)
    assert 1 <= metrics["loader/reads_in_flight"] <= 512
    assert 0 <= metrics["loader/queue_depth"] <= 5  # two ahead, one in use, one in the making, one on its way
    assert 0 <= metrics["loader/queue_seconds"] < 10
    assert metrics["loader/skipped"] == metrics["loader/retries"] == metrics["loader/throttled"] == 0
    assert made.pop_metrics() == {}
