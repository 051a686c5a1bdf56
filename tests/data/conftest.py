"""Loaders of small folders, and their batches."""

import dataclasses
import io
import multiprocessing
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

import imagenet_opt
from imagenet_opt.data.batch import Batch
from imagenet_opt.data.datamodule import ImageData, folder_data
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.prefetcher import DevicePrefetcher
from tests.conftest import loading as loading_at_large
from tests.conftest import loading_options

CPU = torch.device("cpu")
SAMPLE = Path(__file__).parents[3] / "shared/data/imagenet-sample.tar"
AUGMENTED = {"random_shift": 3, "augment": "rand-m7-mstd0.5-inc1", "random_erasing": 0.5}
MakeLoader = Callable[..., DevicePrefetcher]


def loading(**options: Any) -> LoaderOptions:
    """Options for small images, with large crops."""
    return loading_at_large(**{"crop_scale": (0.35, 1.0)} | options)


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLoader]:
    """Makes loaders for the CPU, as on a machine with eight CPUs. All loaders end with the test."""
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)

    def make(root: Path, **options: Any) -> DevicePrefetcher:
        place = {"cache_dir": str(tmp_path / "cache"), "device": "cpu"}
        made.append(imagenet_opt.loader(root, **place | loading_options(**{"crop_scale": (0.35, 1.0)} | options)))
        return made[-1]

    made: list[DevicePrefetcher] = []
    yield make
    for each in made:
        each.close()


def batches(made: DevicePrefetcher, epoch: int = 1, first: int = 0) -> list[Batch]:
    made.sampler.seek(epoch, first)
    return [dataclasses.replace(batch, images=batch.images.clone()) for batch in made]


def assert_equal(actual: list[Batch], expected: list[Batch]) -> None:
    """The batches have the same images, labels and indices."""
    for batch, known in zip(actual, expected, strict=True):
        for name in ("images", "labels", "indices"):
            assert torch.equal(getattr(batch, name), getattr(known, name)), (batch.key, name)


def by_index(actual: list[Batch]) -> dict[int, torch.Tensor]:
    """Images by the index of their sample."""
    return {int(i): image for batch in actual for i, image in zip(batch.indices, batch.images, strict=True)}


def end_of(work: Callable[[], None]) -> Exception:
    """The error that ends `work`, in another process, because torch's signal handler raises again later."""
    here, there = (context := multiprocessing.get_context("fork")).Pipe(duplex=False)

    def run() -> None:
        try:
            work()
        except Exception as error:
            there.send(error)
        os._exit(0)

    child = context.Process(target=run)
    child.start()
    try:
        assert here.poll(600), "it hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Smooth colours with some noise."""
    rng = np.random.default_rng(seed)
    ramps = np.stack(
        [np.add.outer(np.arange(height) * a, np.arange(width) * b) for a, b in ((3, 1), (1, 4), (2, 2))], -1
    )
    noisy = (ramps % 256 * 0.8 + rng.integers(0, 50, (height, width, 3))).astype(np.uint8)
    return Image.fromarray(noisy).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def folder_of(folder: Path, *images: bytes) -> Path:
    """A data set of these images, in one class."""
    (folder / "train/a").mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        (folder / f"train/a/{i}.jpg").write_bytes(image)
    return folder


@pytest.fixture(scope="session")
def sample_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 real ImageNet JPEGs, one per class folder."""
    if not SAMPLE.exists():
        pytest.skip(f"no ImageNet sample beside the checkout: {SAMPLE}")
    folder = tmp_path_factory.mktemp("sample")
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in (folder, *folder.iterdir()) if len(list(path.iterdir())) > 500)


def torchvision_crop(
    height: int, width: int, draws: np.ndarray, scale: tuple[float, float]
) -> tuple[int, int, int, int]:
    """The box (top, left, height, width) of torchvision's RandomResizedCrop for these draws: area, ratio, top, left of
    each of ten tries."""
    tries = iter(draws.reshape(-1, 4))
    left: list[float] = []

    def uniform(tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        if len(left) in (0, 2):  # the first try, or one after a box that did not fit
            left[:] = next(tries)
        return torch.tensor([float(low) + float(left.pop(0)) * (float(high) - float(low))], dtype=torch.float64)

    def randint(low: int, high: int, size: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([low + int(left.pop(0) * (high - low))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "uniform_", uniform)
        patch.setattr(torch, "randint", randint)
        return RandomResizedCrop.get_params(torch.empty(1).expand(3, height, width), list(scale), [3 / 4, 4 / 3])


@pytest.fixture
def data(images_root: Path, tmp_path: Path) -> Callable[..., ImageData]:
    """Data modules of 39 images in 3 classes, with 6 batches an epoch."""

    def make(root: Path = images_root, **options: Any) -> ImageData:
        folders = {"train_folder": "train", "val_folder": "val", "cache_dir": str(tmp_path / "cache")}
        small = {"image_size": 16, "crop_scale": [0.35, 1.0]}
        return folder_data(root=str(root), **folders, **loading_options(**small | options))

    return make
