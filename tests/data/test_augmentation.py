"""Augmented training batches: the same in any batch, and only in training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imagenet_opt.data.randomness import key_of, uniform
from tests.data.conftest import AUGMENTED, MakeLoader, assert_equal, batches, by_index


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
def test_each_key_changes_training_images_alone(
    images_root: Path, loader: MakeLoader, key: str, resize_on: str
) -> None:
    changed = {"resize_on": resize_on, key: AUGMENTED[key]}
    plain, augmented = (batches(loader(images_root, **{"resize_on": resize_on} | more)) for more in ({}, changed))
    pairs = zip(by_index(plain).values(), by_index(augmented).values(), strict=True)
    assert np.mean([not torch.equal(one, other) for one, other in pairs]) > 0.3
    assert augmented[0].images.is_contiguous(memory_format=torch.channels_last) == (resize_on == "device")
    assert_equal(
        *(batches(loader(images_root, split="val", **options)) for options in ({"resize_on": resize_on}, changed))
    )
