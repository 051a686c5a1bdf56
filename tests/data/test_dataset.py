"""Batches: right pixels, the same for any number of workers and any start."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import horizontal_flip, normalize, pil_to_tensor, resized_crop

from imagenet_opt.data.crop import RANDOM_CROP_DRAWS, random_crops
from imagenet_opt.data.dataset import BatchDataset, eval_crops, train_crops
from imagenet_opt.data.decode import decode
from imagenet_opt.data.imagenet import MEAN, STD
from imagenet_opt.data.index import open_split
from imagenet_opt.data.keys import BatchKey, BatchKeys
from imagenet_opt.data.normalize import Normalize
from imagenet_opt.data.order import EvalOrder, TrainOrder
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.randomness import key_of, uniform
from imagenet_opt.data.store import FolderStore
from imagenet_opt.errors import BadSample

SAMPLE = Path(__file__).parents[3] / "shared/data/imagenet-sample.tar"


@pytest.fixture
def dataset(images_root: Path, tmp_path: Path) -> BatchDataset:
    index = open_split(images_root, "train", tmp_path)
    order = TrainOrder(num_samples=len(index), batch_size=6, seed=3)
    crops = train_crops(seed=3, scale=(0.35, 1.0))
    return BatchDataset(store=FolderStore(index), labels=index.labels, order=order, crop_plan=crops)


def loaded(dataset: BatchDataset, num_workers: int, first: int = 0) -> list:
    keys = BatchKeys(num_batches=dataset.order.num_batches, image_size=32)
    keys.seek(1, first)
    return list(DataLoader(dataset, batch_size=None, sampler=keys, num_workers=num_workers))


def test_a_batch_is_what_pillow_and_torchvision_make_of_it(dataset: BatchDataset) -> None:
    batch = dataset[BatchKey(1, 2, 32)]
    for row, i in enumerate(batch.indices.tolist()):
        with Image.open(dataset.store.name(i)) as image:
            pixels = pil_to_tensor(image.convert("RGB"))
        draws = uniform(key_of(3, 1), np.array([i]), RANDOM_CROP_DRAWS + 1)
        size = np.array([pixels.shape[1]]), np.array([pixels.shape[2]])
        box = [int(side[0]) for side in random_crops(*size, draws[:, :-1], scale=(0.35, 1.0))]
        expected = resized_crop(pixels, *box, size=[32, 32], antialias=True)
        expected = horizontal_flip(expected) if draws[0, -1] < 0.5 else expected
        assert (batch.images[row].int() - expected.int()).abs().max() <= 2  # two builds of libjpeg-turbo
        assert batch.labels[row] == dataset.labels[i]
    assert batch.valid.all()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize(("num_workers", "first"), [(1, 0), (3, 0), (0, 4), (2, 5)])
def test_workers_and_starting_points_change_nothing(dataset: BatchDataset, num_workers: int, first: int) -> None:
    for batch, expected in zip(loaded(dataset, num_workers, first), loaded(dataset, 0)[first:], strict=True):
        assert batch.key == expected.key
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.indices, expected.indices)


def test_half_of_the_images_are_flipped(dataset: BatchDataset) -> None:
    draw = TrainOrder(num_samples=4000, batch_size=4000, seed=0).draw(0, 0)
    side = np.full(4000, 50)
    assert 1850 < dataset.crop_plan(draw, side, side)[1].sum() < 2150


def test_validation_masks_its_padding(images_root: Path, tmp_path: Path) -> None:
    index = open_split(images_root, "val", tmp_path)
    order = EvalOrder(num_samples=len(index), batch_size=6)
    crops = eval_crops(crop_ratio=0.875)
    dataset = BatchDataset(store=FolderStore(index), labels=index.labels, order=order, crop_plan=crops)
    assert dataset[BatchKey(0, 6, 32)].valid.tolist() == [True] * 3 + [False] * 3


def test_the_prefetcher_keeps_order_and_length_in_the_middle_of_an_epoch(dataset: BatchDataset) -> None:
    keys = BatchKeys(num_batches=6, image_size=32)
    loader = DataLoader(dataset, batch_size=None, sampler=keys)
    prefetcher = DevicePrefetcher(loader, keys, device=torch.device("cpu"), transform=Normalize(torch.device("cpu")))
    keys.seek(2, 4)
    keys.set_epoch(2)
    assert [batch.key[:2] for batch in prefetcher] == [(2, 4), (2, 5)]
    assert len(prefetcher) == 6
    keys.set_epoch(3)
    batches = list(prefetcher)
    assert [batch.key[:2] for batch in batches] == [(3, step) for step in range(6)]
    expected = normalize(dataset[BatchKey(3, 0, 32)].images / 255, list(MEAN), list(STD))
    torch.testing.assert_close(batches[0].images, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_whatever_pillow_opens_becomes_rgb(mode: str, kind: str, tmp_path: Path) -> None:
    if (mode, kind) == ("CMYK", "PNG"):
        pytest.skip("PNG has no CMYK")
    file = tmp_path / "x.JPEG"
    Image.new(mode, (40, 30), 128 if mode == "L" else tuple([90] * len(mode))).save(file, kind)
    pixels = decode(file.read_bytes(), str(file))
    assert pixels.shape == (3, 30, 40)
    assert pixels.dtype == torch.uint8


@pytest.mark.parametrize("content", [b"", b"this is text", b"\xff\xd8\xff\xe0 cut short"])
def test_what_is_no_image_is_told_by_its_name(content: bytes) -> None:
    with pytest.raises(BadSample, match=r"/data/n01/x\.JPEG.*data\.root"):
        decode(content, "/data/n01/x.JPEG")


def test_a_file_that_vanished_is_told_by_its_name(images_root: Path, tmp_path: Path) -> None:
    index = open_split(images_root, "train", tmp_path)
    gone = type(index)(tmp_path, index.classes, index.labels, index.names, index.offsets)
    with pytest.raises(BadSample, match=r"class0/image000\.JPEG.*No such file"):
        FolderStore(gone).read_many(np.array([0]))


@pytest.mark.skipif(not SAMPLE.exists(), reason="the 1000 ImageNet images are not beside the checkout")
def test_real_images_decode_to_the_size_that_pillow_says() -> None:
    num = 0
    with tarfile.open(SAMPLE) as archive:
        for member in archive:
            if member.isfile() and num < 60:
                encoded = archive.extractfile(member).read()
                with Image.open(io.BytesIO(encoded)) as image:
                    assert decode(encoded, member.name).shape == (3, image.height, image.width)
                num += 1
    assert num == 60
