"""Copies to a real GPU: right values, pinned, beside the computing stream."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.data.prefetcher import DevicePrefetcher
from tests.data.conftest import loading

CUDA = torch.device("cuda", 0)


def prefetcher(
    root: Path, cache: Path, device: torch.device, resize_on: str, copies: str, dtype: torch.dtype = torch.float32
) -> DevicePrefetcher:
    options = loading(batch_size=4, image_size=48, num_workers=2, resize_on=resize_on, copies=copies)
    return train_loader(open_index(root, "train", cache), options, RankInfo(device=device, dtype=dtype))


def expected_batches(root: Path, cache: Path, *options: Any) -> list[Batch]:
    with closing(prefetcher(root, cache, torch.device("cpu"), *options)) as made:
        return list(made)


@pytest.mark.parametrize("copies", ["ahead", "pinned", "pageable"])
@pytest.mark.parametrize("resize_on", ["worker", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_batches_arrive_as_on_the_cpu_while_the_device_is_busy(
    images_root: Path, tmp_path: Path, resize_on: str, copies: str, dtype: torch.dtype
) -> None:
    expected = expected_batches(images_root, tmp_path, resize_on, copies, dtype)
    work = torch.randn(4096, 4096, device=CUDA)
    arrived = []
    with closing(prefetcher(images_root, tmp_path, CUDA, resize_on, copies, dtype)) as made:
        for batch in made:
            for _ in range(5):
                work = torch.tanh(work @ work)  # keeps the computing stream behind the copies
            arrived.append((batch.images * 1.0, batch.labels.clone(), batch.indices.clone()))
    assert len(arrived) == len(expected) == 9
    for (images, labels, indices), batch in zip(arrived, expected, strict=True):
        off = 1.0 if dtype == torch.uint8 else 1e-4  # a pixel may be rounded the other way
        torch.testing.assert_close(images.cpu(), batch.images.float(), rtol=1e-4, atol=off)
        assert torch.equal(labels.cpu(), batch.labels)
        assert torch.equal(indices.cpu(), batch.indices)


def test_epochs_that_end_early_leave_no_copy_under_way(images_root: Path, tmp_path: Path) -> None:
    """The workers overwrite all slots when an epoch begins."""
    expected = expected_batches(images_root, tmp_path, "device", "ahead")
    with closing(prefetcher(images_root, tmp_path, CUDA, "device", "ahead")) as made:
        for _ in range(20):
            made.sampler.set_epoch(0)
            batch = next(iter(made))
            torch.testing.assert_close(batch.images.cpu(), expected[0].images, rtol=1e-4, atol=1e-4)
