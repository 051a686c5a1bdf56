"""Copies to a real GPU: right values, pinned, beside the computing stream."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from imagenet_opt.data.dataset import BatchDataset, train_crops
from imagenet_opt.data.index import open_split
from imagenet_opt.data.keys import BatchKeys
from imagenet_opt.data.normalize import Normalize
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.store import FolderStore


def prefetcher(root: Path, cache: Path, device: torch.device) -> DevicePrefetcher:
    index = open_split(root, "train", cache)
    order = TrainOrder(num_samples=len(index), batch_size=4, seed=0)
    crops = train_crops(seed=0, scale=(0.35, 1.0))
    dataset = BatchDataset(store=FolderStore(index), labels=index.labels, order=order, crop_plan=crops)
    keys = BatchKeys(num_batches=order.num_batches, image_size=48)
    loader = DataLoader(dataset, batch_size=None, sampler=keys, num_workers=2, pin_memory=device.type == "cuda")
    return DevicePrefetcher(loader, keys, device=device, transform=Normalize(device))


def test_batches_arrive_as_on_the_cpu_while_the_device_is_busy(images_root: Path, tmp_path: Path) -> None:
    expected = list(prefetcher(images_root, tmp_path, torch.device("cpu")))
    device = torch.device("cuda", 0)
    work = torch.randn(4096, 4096, device=device)
    arrived = []
    for batch in prefetcher(images_root, tmp_path, device):
        for _ in range(5):
            work = torch.tanh(work @ work)  # keeps the computing stream behind the copies
        arrived.append((batch.images * 1.0, batch.labels.clone(), batch.indices.clone()))
    assert len(arrived) == len(expected) == 9
    for (images, labels, indices), batch in zip(arrived, expected, strict=True):
        torch.testing.assert_close(images.cpu(), batch.images, rtol=1e-5, atol=1e-5)
        assert torch.equal(labels.cpu(), batch.labels)
        assert torch.equal(indices.cpu(), batch.indices)
