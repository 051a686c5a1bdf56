"""The same batches for any number of workers and ranks, any start and slow storage."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imagenet_opt.data.randomness import key_of, uniform
from tests.data.conftest import AUGMENTED, MakeLoader, assert_equal, batches, by_index

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")


@pytest.mark.parametrize(
    ("workers", "first", "shuffle", "resize_on", "more"),
    [
        (1, 0, "global", "worker", {}),
        (3, 0, "global", "device", AUGMENTED),
        (0, 3, "global", "worker", AUGMENTED),
        (2, 2, "block", "device", {}),
        (2, 1, "global", "worker", {"weights": range(1, 40)}),
        (1, 0, "global", "worker", {"added_latency_ms": 30}),
    ],
)
def test_workers_and_starting_points_change_nothing(
    images_root: Path, loader: MakeLoader, workers: int, first: int, shuffle: str, resize_on: str, more: dict
) -> None:
    options = {"batch_size": 8, "shuffle": shuffle, "resize_on": resize_on, **more}
    expected = batches(loader(images_root, **options | {"added_latency_ms": 0}))
    assert len(expected) == 4
    torch.manual_seed(workers)
    np.random.seed(workers)
    state = torch.get_rng_state()
    made = loader(images_root, num_workers=workers, **options)
    for epoch in (1, 2, 1):  # persistent workers, and read-ahead of batches that do not come
        actual = batches(made, epoch=epoch, first=first)
        assert [batch.key[:3] for batch in actual] == [(epoch, step, 32) for step in range(first, 4)]
    assert_equal(actual, expected[first:])
    assert torch.equal(torch.get_rng_state(), state), "the model's generator"
    assert actual[-1].stats.reads_in_flight >= (4 if "added_latency_ms" in more else 1)


def test_the_read_ahead_samples_are_those_of_the_next_batches(images_root: Path, loader: MakeLoader) -> None:
    made = loader(images_root, num_workers=3, reads_in_flight=1)
    for epoch in range(3):
        assert len(batches(made, epoch)) == 6
    assert 3 * 36 <= made.totals()["num_read"] <= 3 * 36 + 3 * 6  # and a batch of the fourth epoch


def test_centred_training_crops_are_those_of_validation(images_root: Path, loader: MakeLoader) -> None:
    trained = by_index(batches(loader(images_root, batch_size=8, train_crop="center", val_crop_ratio=0.8)))
    images = by_index(list(loader(images_root, training=False, val_crop_ratio=0.8)))
    assert len(trained) == 32 and all(torch.equal(image, images[i]) for i, image in trained.items())


@pytest.mark.parametrize(("more", "resize_on"), [({"shuffle": "block"}, "worker"), (AUGMENTED, "device")])
def test_two_ranks_make_the_batch_of_one(images_root: Path, loader: MakeLoader, more: dict, resize_on: str) -> None:
    """In blocks of 16, if in blocks; 39 samples have two blocks."""
    options = {"resize_on": resize_on, **more}
    whole = batches(loader(images_root, batch_size=32, **options))
    options |= {"global_batch_size": 32, "world_size": 2}
    halves = [batches(loader(images_root, rank=rank, **options)) for rank in (0, 1)]
    for one, *parts in zip(whole, *halves, strict=True):
        images, expected = by_index(parts), by_index([one])
        assert images.keys() == expected.keys() and len(images) == 32
        assert all(torch.equal(images[i], image) for i, image in expected.items())


def test_random_shift_is_padding_and_cropping(images_root: Path, loader: MakeLoader) -> None:
    """Bit by bit, at offsets that (seed, pass, index) determine, whatever the batch."""
    color, padding = (102, 51, 153), 4
    options = {"mean": [level / 255 for level in color], "std": (1 / 255,) * 3}
    plain = by_index(batches(loader(images_root, **options), epoch=5))
    moved = by_index(batches(loader(images_root, random_shift=padding, batch_size=5, **options), epoch=5))

    def padded(image: torch.Tensor) -> torch.Tensor:
        channels = zip((image + mean).round().to(torch.uint8), color, strict=True)
        return torch.stack([torch.nn.functional.pad(each, (padding,) * 4, value=level) for each, level in channels])

    mean, offsets = torch.tensor(color).view(3, 1, 1), set()
    for index in plain.keys() & moved.keys():
        draws = uniform(key_of(3, 5, 4), np.array([index]), 2)[0]  # seed, pass, stream
        left, top = (int(move) for move in 2 * padding - np.floor(draws * (2 * padding + 1)))
        expected = padded(plain[index])[:, top : top + 32, left : left + 32]
        assert torch.equal((moved[index] + mean).round().to(torch.uint8), expected), (left, top)
        offsets.add((left, top))
    assert len(offsets) > len(plain) / 2


@pytest.mark.parametrize(
    ("key", "resize_on"), [("random_shift", "worker"), ("augment", "device"), ("random_erasing", "device")]
)
def test_each_key_changes_training_alone(images_root: Path, loader: MakeLoader, key: str, resize_on: str) -> None:
    changed = {"resize_on": resize_on, key: AUGMENTED[key]}
    plain, augmented = (batches(loader(images_root, **{"resize_on": resize_on} | more)) for more in ({}, changed))
    pairs = zip(by_index(plain).values(), by_index(augmented).values(), strict=True)
    assert np.mean([not torch.equal(one, other) for one, other in pairs]) > 0.3
    assert augmented[0].images.is_contiguous(memory_format=torch.channels_last) == (resize_on == "device")
    assert_equal(
        *(batches(loader(images_root, split="val", **options)) for options in ({"resize_on": resize_on}, changed))
    )


def test_a_batch_of_two_parts_is_the_batch(images_root: Path, loader: MakeLoader) -> None:
    """A batch of a fifth comes whole; the order of samples does not depend on the batch."""
    options = {"indices": np.tile(np.arange(39), 28), "image_size": 8, "resize_on": "device", "shuffle": "block"}
    small = batches(loader(images_root, batch_size=104, **options, **AUGMENTED))
    made = loader(images_root, batch_size=520, num_workers=2, prefetch_factor=1, **options, **AUGMENTED)
    whole, resumed = batches(made), batches(made, epoch=1, first=1)
    assert [batch.key[:2] for batch in (*whole, *resumed)] == [(1, 0), (1, 1), (1, 1)] and len(made) == 2
    for batch, known in zip((*whole, *resumed), (small[:5], small[5:], small[5:]), strict=True):
        for name in ("images", "labels", "indices", "valid"):
            assert torch.equal(getattr(batch, name), torch.cat([getattr(one, name) for one in known])), name
    assert not made.buffers.holding.any()  # every part was given back to its worker
