"""Copies to a real GPU: right values, pinned, beside the computing stream."""

from pathlib import Path

import pytest
import torch

from imagenet_opt.data.loader import RankInfo, open_index, train_loader
from imagenet_opt.data.prefetcher import DevicePrefetcher
from tests.data.conftest import loading


def prefetcher(root: Path, cache: Path, device: torch.device, resize_on: str, copies: str) -> DevicePrefetcher:
    options = loading(batch_size=4, image_size=48, num_workers=2, resize_on=resize_on, copies=copies)
    return train_loader(open_index(root, "train", cache), options, RankInfo(device=device))


@pytest.mark.parametrize("copies", ["ahead", "pinned", "pageable"])
@pytest.mark.parametrize("resize_on", ["worker", "device"])
def test_batches_arrive_as_on_the_cpu_while_the_device_is_busy(
    images_root: Path, tmp_path: Path, resize_on: str, copies: str
) -> None:
    expected = list(prefetcher(images_root, tmp_path, torch.device("cpu"), resize_on, copies))
    device = torch.device("cuda", 0)
    work = torch.randn(4096, 4096, device=device)
    arrived = []
    for batch in prefetcher(images_root, tmp_path, device, resize_on, copies):
        for _ in range(5):
            work = torch.tanh(work @ work)  # keeps the computing stream behind the copies
        arrived.append((batch.images * 1.0, batch.labels.clone(), batch.indices.clone()))
    assert len(arrived) == len(expected) == 9
    for (images, labels, indices), batch in zip(arrived, expected, strict=True):
        torch.testing.assert_close(images.cpu(), batch.images, rtol=1e-4, atol=1e-4)
        assert torch.equal(labels.cpu(), batch.labels)
        assert torch.equal(indices.cpu(), batch.indices)
