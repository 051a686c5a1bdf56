"""Large batches come from workers in parts: the same images in the same order, in less memory."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from imagenet_opt.data.batch import Batch
from tests.data.conftest import AUGMENTED, MakeLoader, batches

LARGE, SMALL = 520, 104
"""A batch of two parts, and a fifth of it, which comes whole."""


@pytest.fixture
def long(images_root: Path, loader: MakeLoader) -> MakeLoader:
    """Makes loaders of two large batches an epoch, of small images that come again and again."""
    rows = np.tile(np.arange(39), -(-(2 * LARGE + 30) // 39))
    return partial(loader, images_root, indices=rows, image_size=8, batch_size=LARGE)


def equal(actual: Batch, known: list[Batch]) -> bool:
    """Whether a batch is these smaller batches, one after the other."""
    names = ("images", "labels", "indices", "valid")
    return all(torch.equal(getattr(actual, n), torch.cat([getattr(one, n) for one in known])) for n in names)


def test_a_batch_of_parts_is_the_batch(long: MakeLoader) -> None:
    """Small batches follow each other in the order of large ones: the order of samples does not depend on the batch."""
    options = {"resize_on": "device", "shuffle": "block", **AUGMENTED}
    small = batches(long(batch_size=SMALL, **options))
    made = long(num_workers=2, prefetch_factor=1, **options)
    actual = batches(made)
    assert [batch.key[:2] for batch in actual] == [(1, 0), (1, 1)] and len(made) == 2
    assert equal(actual[0], small[:5]) and equal(actual[1], small[5:])
    assert not made.buffers.holding.any()  # every part was given back to its worker
    resumed = batches(made, epoch=1, first=1)
    assert len(resumed) == 1 and equal(resumed[0], small[5:])
