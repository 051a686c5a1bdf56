"""Batches: right pixels, the same for any number of workers, ranks and any start; what is bad is replaced."""

import dataclasses
import io
import logging
import os
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import horizontal_flip, normalize, pil_to_tensor, resized_crop

from imagenet_opt.data.crop import RANDOM_CROP_DRAWS, random_crops
from imagenet_opt.data.dataset import train_crops
from imagenet_opt.data.imagenet import MEAN, STD
from imagenet_opt.data.loader import Seat, eval_loader, open_index, train_loader
from imagenet_opt.data.loading import Loading
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.data.randomness import key_of, uniform
from imagenet_opt.errors import BadSample, TooManyBadSamples, WorkerDied
from tests.conftest import write_images

SAMPLE = Path(__file__).parents[3] / "shared/data/imagenet-sample.tar"
CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")


def loading(**options) -> Loading:
    return Loading(
        **{
            "batch_size": 6,
            "image_size": 32,
            "num_workers": 0,
            "prefetch_factor": 2,
            "crop_scale": (0.35, 1.0),
            "val_image_size": None,
            "val_crop_ratio": 0.875,
            "samples_per_epoch": None,
            "seed": 3,
        }
        | options
    )


def loader(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, world_size: int = 1, **options):
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    index = open_index(root, "train", cache)
    return train_loader(index, loading(**options), Seat(device=CPU, rank=rank, world_size=world_size))


def batches(made, epoch: int = 1, first: int = 0) -> list:
    made.sampler.seek(epoch, first)
    return [dataclasses.replace(batch, images=batch.images.clone()) for batch in made]


def pixels(batch) -> torch.Tensor:
    """Back to 0 to 255."""
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    return (batch.images * std + mean) * 255


def test_a_batch_is_what_pillow_and_torchvision_make_of_it(images_root, tmp_path, monkeypatch) -> None:
    made = loader(images_root, tmp_path, monkeypatch)
    batch = batches(made)[2]
    dataset = made.loader.dataset
    for row, i in enumerate(batch.indices.tolist()):
        with Image.open(dataset.reader.store.name(i)) as image:
            source = pil_to_tensor(image.convert("RGB"))
        draws = uniform(key_of(3, 1), np.array([i]), RANDOM_CROP_DRAWS + 1)
        size = np.array([source.shape[1]]), np.array([source.shape[2]])
        box = [int(side[0]) for side in random_crops(*size, draws[:, :-1], scale=(0.35, 1.0))]
        expected = resized_crop(source, *box, size=[32, 32], antialias=True)
        expected = horizontal_flip(expected) if draws[0, -1] < 0.5 else expected
        expected = normalize(expected / 255, list(MEAN), list(STD))
        assert (batch.images[row] - expected).abs().max() <= 3 / 255 / min(STD)  # two builds of libjpeg-turbo
        assert batch.labels[row] == dataset.labels[i]
    assert batch.valid.all()


@pytest.mark.parametrize("resize_on", ["worker", "device"])
@pytest.mark.parametrize(("workers", "first"), [(1, 0), (3, 0), (0, 4), (2, 5)])
def test_workers_and_starting_points_change_nothing(
    images_root, tmp_path, monkeypatch, workers: int, first: int, resize_on: str
) -> None:
    expected = batches(loader(images_root, tmp_path, monkeypatch, resize_on=resize_on))[first:]
    made = loader(images_root, tmp_path, monkeypatch, num_workers=workers, resize_on=resize_on)
    for batch, known in zip(batches(made, first=first), expected, strict=True):
        assert batch.key == known.key
        assert torch.equal(batch.images, known.images)
        assert torch.equal(batch.indices, known.indices)
    again = batches(made, epoch=2)
    other = torch.cat([batch.indices for batch in again]) != torch.cat([b.indices for b in batches(made, epoch=1)])
    assert other.any()


def test_worker_and_device_resize_are_alike(images_root, tmp_path, monkeypatch) -> None:
    here = batches(loader(images_root, tmp_path, monkeypatch, resize_on="worker"))
    there = batches(loader(images_root, tmp_path, monkeypatch, resize_on="device"))
    for a, b in zip(here, there, strict=True):
        assert (pixels(a) - pixels(b)).abs().max() <= 1.01  # the worker rounds to whole numbers
        assert (pixels(a) - pixels(b)).abs().mean() <= 0.5


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_two_ranks_make_the_global_batch_of_one(images_root, tmp_path, monkeypatch, shuffle: str) -> None:
    whole = batches(loader(images_root, tmp_path, monkeypatch, batch_size=16, shuffle=shuffle))
    halves = [
        batches(loader(images_root, tmp_path, monkeypatch, batch_size=8, shuffle=shuffle, rank=r, world_size=2))
        for r in (0, 1)
    ]
    if shuffle == "block":  # blocks of 16 and of 8 differ; what holds is that ranks share the pass
        seen = torch.cat([batch.indices for half in halves for batch in half])
        assert len(set(seen.tolist())) == len(seen) == 32
        return
    for one, *parts in zip(whole, *halves, strict=True):
        indices = torch.cat([part.indices for part in parts])
        images = torch.cat([part.images for part in parts])
        assert torch.equal(one.indices, indices)
        assert torch.equal(one.images, images)


def test_the_image_size_follows_the_epoch(images_root, tmp_path, monkeypatch) -> None:
    made = loader(images_root, tmp_path, monkeypatch, num_workers=1)
    made.sampler.size_of = lambda epoch: 16 + 8 * epoch
    assert [batches(made, epoch=e)[0].images.shape[-1] for e in (0, 1, 2)] == [16, 24, 32]


def test_half_of_the_images_are_flipped() -> None:
    draw = TrainOrder(num_samples=4000, batch_size=4000, seed=0).draw(0, 0)
    side = np.full(4000, 50)
    assert 1850 < train_crops(seed=0, scale=(0.35, 1.0))(draw, side, side)[1].sum() < 2150


def test_validation_masks_its_padding_and_bad_samples(images_root, tmp_path) -> None:
    shutil.copytree(images_root, tmp_path / "data")
    index = open_index(tmp_path / "data", "val", tmp_path)
    Path(index.path(7)).write_bytes(b"")
    found = list(eval_loader(index, loading(max_bad_fraction=0.1), Seat(device=CPU)))
    assert found[6].valid.tolist() == [True] * 3 + [False] * 3
    assert [int(batch.valid.sum()) for batch in found] == [6, 5, 6, 6, 6, 6, 3]
    assert not found[1].valid[1]


def spoiled(images_root: Path, root: Path) -> Path:
    """A copy with one bad file of each kind in train/."""
    shutil.copytree(images_root, root)
    files = sorted((root / "train").glob("*/*.JPEG"))
    files[0].write_bytes(b"")
    files[9].write_text("this is no image")
    files[17].write_bytes(files[17].read_bytes()[:200])
    files[25].unlink()
    files[25].symlink_to("/nowhere/image.JPEG")
    return root


def test_bad_samples_are_replaced_alike_everywhere_and_told_once(
    images_root, tmp_path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = spoiled(images_root, tmp_path / "data with spaces äö")
    expected = batches(loader(root, tmp_path, monkeypatch, max_bad_fraction=0.2))
    skipped = {index for batch in expected for index, _ in batch.making.skipped}
    assert skipped <= {0, 9, 17, 25}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        made = loader(root, tmp_path, monkeypatch, max_bad_fraction=0.2, num_workers=3)
        for batch, known in zip(batches(made, first=2), expected[2:], strict=True):
            assert torch.equal(batch.indices, known.indices)
            assert torch.equal(batch.images, known.images)
            assert not {0, 9, 17, 25} & set(batch.indices.tolist())
        batches(made)
        assert made.drain()["loader/skipped"] == len(skipped)
    told = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(told) == len(skipped)
    assert all("data with spaces äö/train/class" in line for line in told)


def test_past_the_limit_the_list_of_bad_samples_ends_the_run(images_root, tmp_path, monkeypatch) -> None:
    root = spoiled(images_root, tmp_path / "data")
    with pytest.raises(TooManyBadSamples, match=r"data\.max_bad_fraction=0\.01 of(.|\n)*image"):
        batches(loader(root, tmp_path, monkeypatch, max_bad_fraction=0.01))
    with pytest.raises(BadSample, match="class"):
        batches(loader(root, tmp_path, monkeypatch, on_bad_sample="raise"))


def test_names_of_any_kind_are_read(images_root, tmp_path, monkeypatch) -> None:
    root = tmp_path / "data"
    shutil.copytree(images_root, root)
    for split in ("train", "val"):
        os.rename(root / split / "class0", root / split / "klasse ß ½")
        first = sorted((root / split / "class1").iterdir())[0]
        os.rename(first, os.fsencode(first.parent) + b"/not \xff utf8.JPEG")
    seen = torch.cat([batch.indices for batch in batches(loader(root, tmp_path, monkeypatch, batch_size=13))])
    assert sorted(seen.tolist()) == list(range(39))


def test_a_killed_worker_is_told_and_nothing_hangs(tmp_path, monkeypatch) -> None:
    root = write_images(tmp_path / "data", num_classes=2, per_class=30)
    made = loader(root, tmp_path, monkeypatch, num_workers=1, samples_per_epoch=None)
    with pytest.raises(WorkerDied, match=r"killed.*data\.num_workers"):
        for epoch in range(1000):
            made.sampler.set_epoch(epoch)
            for batch in made:
                if batch.key == (2, 1, 32):
                    for child in psutil.Process().children():
                        if "pt_data" in child.name():
                            os.kill(child.pid, signal.SIGKILL)


def test_the_workers_tell_what_a_batch_took(images_root, tmp_path, monkeypatch) -> None:
    made = loader(images_root, tmp_path, monkeypatch, num_workers=1)
    seen = torch.cat([batch.indices for batch in batches(made)])
    sizes = [os.path.getsize(made.loader.dataset.reader.store.name(i)) for i in seen.tolist()]
    told = made.drain()
    assert told["loader/mb_read"] == pytest.approx(sum(sizes) / 1e6 / len(made), rel=1e-6)
    assert 0 < told["loader/decode_seconds"] < 10
    assert told["loader/reads_in_flight"] >= 1
    assert told["loader/queue_depth"] >= 0
    assert made.drain() == {}


def test_real_images_of_odd_coding_all_decode(tmp_path, monkeypatch) -> None:
    if not SAMPLE.exists():
        pytest.skip("the ImageNet sample is not on this machine")
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    root = next(path for path in (tmp_path / "data", *(tmp_path / "data").iterdir()) if len(list(path.iterdir())) > 500)
    index = open_index(root, ".", tmp_path)
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 2)
    how = loading(batch_size=100, num_workers=2, on_bad_sample="raise", crop_scale=(0.08, 1.0))
    made = train_loader(index, how, Seat(device=CPU))
    seen = [i for batch in batches(made) for i in batch.indices.tolist()]
    assert sorted(seen) == list(range(1000))


def png(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(file, "PNG")
    return file.getvalue()


def test_a_png_of_one_pixel_named_jpeg_is_an_image_too(images_root, tmp_path, monkeypatch) -> None:
    shutil.copytree(images_root, tmp_path / "data")
    files = sorted((tmp_path / "data/train").glob("*/*.JPEG"))
    files[3].write_bytes(png((1, 1)))
    found = [b for b in batches(loader(tmp_path / "data", tmp_path, monkeypatch)) if 3 in b.indices.tolist()]
    for batch in found:
        row = batch.indices.tolist().index(3)
        assert (pixels(batch)[row].mean(dim=(1, 2)) - torch.tensor([200.0, 10, 10])).abs().max() < 1
