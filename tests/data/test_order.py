"""Each sample comes once per pass, for any ranks, slices and batches."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from timm.data.distributed_sampler import RepeatAugSampler

from imagenet_opt.data.order import EvalOrder, TrainOrder, spread_by_class
from imagenet_opt.data.randomness import key_of, uniform


def epoch_of(order: TrainOrder | EvalOrder, epoch: int) -> list[int]:
    return [i for step in range(order.num_batches) for i in order.sample_ids(epoch, step).indices.tolist()]


def train(num: int, batch: int, **options: Any) -> TrainOrder:
    return TrainOrder(num_samples=num, batch_size=batch, seed=0, **options)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_an_epoch_and_the_rest_is_dropped(world_size: int) -> None:
    orders = [train(100, 7, rank=rank, world_size=world_size) for rank in range(world_size)]
    samples = [i for order in orders for i in epoch_of(order, 0)]
    assert len(samples) == len(set(samples)) == 100 - orders[0].num_dropped
    assert orders[0].num_dropped == 100 % (7 * world_size)


def test_epochs_and_seeds_differ_and_any_batch_can_be_first() -> None:
    order = train(100, 10)
    assert epoch_of(order, 0) != epoch_of(order, 1)
    assert epoch_of(order, 0) != epoch_of(TrainOrder(num_samples=100, batch_size=10, seed=1), 0)
    assert train(100, 10).sample_ids(5, 7).indices.tolist() == epoch_of(order, 5)[70:80]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_validation_that_is_spread_has_each_sample_once_and_equal_shares_of_classes(world_size: int) -> None:
    counts = np.array([40, 10, 100, 20])
    labels = np.repeat(np.arange(4), counts)
    options = {"num_samples": 170, "batch_size": 8, "world_size": world_size, "order": spread_by_class(labels)}
    orders = [EvalOrder(rank=rank, **options) for rank in range(world_size)]
    drawn = [order.sample_ids(0, step) for step in range(orders[0].num_batches) for order in orders]
    samples = np.concatenate([ids.indices[: ids.num_valid] for ids in drawn])
    assert sorted(samples) == list(range(170))
    for num in (34, 85):
        assert abs(np.bincount(labels[samples[:num]], minlength=4) - counts * num / 170).max() <= 2


@pytest.mark.parametrize("slice_size", [50, 30, 40, 100, 37])
def test_slices_go_through_all_samples_before_any_twice(slice_size: int) -> None:
    order = train(100, 10, samples_per_epoch=slice_size)
    stream = [i for epoch in range(20) for i in epoch_of(order, epoch)]
    for start in range(0, len(stream) - 99, 100):
        assert sorted(stream[start : start + 100]) == list(range(100))
    assert len(epoch_of(order, 0)) == slice_size // 10 * 10


def test_a_repeated_sample_has_a_new_pass_id() -> None:
    order = train(20, 10, samples_per_epoch=10)
    passes = [order.sample_ids(epoch, 0).pass_ids.tolist() for epoch in range(4)]
    assert passes == [[0] * 10, [0] * 10, [1] * 10, [1] * 10]


@pytest.mark.parametrize("world_size", [1, 3])
def test_weights_are_chances_and_no_two_samples_of_a_pass_are_the_same_draw(world_size: int) -> None:
    weights = np.array([1.0] * 45 + [5.0] * 15) * 3e307
    orders = [train(60, 12 // world_size, weights=weights, rank=r, world_size=world_size) for r in range(world_size)]
    whole = train(60, 12, weights=weights)
    counts = np.zeros(60)
    for epoch in range(200):
        draws = [[order.sample_ids(epoch, step) for order in orders] for step in range(5)]
        indices, pass_ids = np.concatenate([(one.indices, one.pass_ids) for step in draws for one in step], axis=1)
        assert len(set(zip(indices.tolist(), pass_ids.tolist(), strict=True))) == 60
        assert indices.tolist() == epoch_of(whole, epoch)
        counts += np.bincount(indices, minlength=60)
    expected = 100 * (weights / weights.min())
    assert ((counts - expected) ** 2 / expected).sum() < 98.3  # chi-square with 59 degrees of freedom, 0.1 %


@pytest.mark.parametrize("world_size", [1, 4])
def test_repeated_augmentation_repeats_as_many_images_as_timm(world_size: int) -> None:
    """timm's epoch of 768 samples is 256 images, each three times in a row."""
    theirs = RepeatAugSampler(range(768), num_replicas=1, rank=0, num_repeats=3)
    orders = [train(768, 48 // world_size, repetitions=3, rank=r, world_size=world_size) for r in range(world_size)]
    ours = np.array([[i for order in orders for i in order.sample_ids(1, step).indices] for step in range(16)])
    for step, batch in enumerate(np.array(list(theirs)).reshape(16, 48)):
        assert sorted(Counter(ours[step].tolist()).values()) == sorted(Counter(batch.tolist()).values()) == [3] * 16
        assert len(set(ours[step, :16].tolist())) == 16, "the copies of an image are apart"
    assert set(Counter(ours.ravel().tolist()).values()) == {3}
    assert set(epoch_of(orders[0], 1)) != set(epoch_of(orders[0], 2))


def test_the_stream_of_random_numbers_never_changes() -> None:
    """With other numbers, a run that resumes with another version would have other crops."""
    assert uniform(key_of(0, 1), np.array([2]), 2).tolist() == [[0.7911371059697662, 0.9391030520543657]]


@pytest.mark.parametrize(("num", "size"), [(160, 8), (165, 8), (1003, 16)])
def test_blocks_stay_together_in_one_batch_and_come_once(num: int, size: int) -> None:
    order = train(num, 2 * size, block_size=size, samples_per_epoch=num // size * size)
    ends = []
    for epoch in range(3):
        samples = []
        for step in range(order.num_batches):
            for block in order.sample_ids(epoch, step).indices.reshape(2, size):
                assert ((block - block[0]) % num == np.arange(size)).all()
                samples += block.tolist()
        assert len(set(samples)) == len(samples)
        ends.append(set(range(num)) - set(samples))
    assert num % size == 0 or len({frozenset(left) for left in ends}) > 1
