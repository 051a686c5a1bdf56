"""Loops with a known cause, as people write them, on real JPEGs: each as it is, and after its remedy.

The device is simulated: most steps wait for a fixed time, as for a GPU, after a little work of the host. So the loader
decides; two loops train a network on the CPU.
"""

import hashlib
import io
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms
from torchvision.transforms import v2

Made = tuple[Any, Callable[[Any], Any]]
"""A loader and a step."""
BATCH = 16


@dataclass(frozen=True)
class Loop:
    """right: causes that are right. make: the loader and the step; with True after the remedy. cpus: that it may use;
    0: all."""

    right: tuple[str, ...]
    make: Callable[[Path, bool], Made]
    cpus: int = 0
    neighbours: int = 0


class Files(Dataset[Any]):
    """(image, label) of each file. wait: seconds before a file arrives; per_mb: further seconds for each MB."""

    def __init__(self, folder: Path, change: Callable[[bytes], Any], *, wait: float = 0.0, per_mb: float = 0.0) -> None:
        self.files = sorted(file for file in folder.rglob("*") if file.is_file())
        self.change, self.wait, self.per_mb = change, wait, per_mb

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        content = self.files[index].read_bytes()
        if self.wait or self.per_mb:
            time.sleep(self.wait + self.per_mb * len(content) / 1e6)
        return self.change(content), index % 1000


class Stream(IterableDataset[Any]):
    def __init__(self, files: Files) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        order = list(range(len(self.files)))
        while True:
            random.shuffle(order)
            yield from (self.files[index] for index in order)


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


_CROP = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
)
_SMALL = transforms.Compose([transforms.RandomResizedCrop(64), transforms.PILToTensor()])


def pillow(content: bytes) -> Tensor:
    return _CROP(opened(content))  # type: ignore[no-any-return]


def decoded_by_torchvision(content: bytes) -> Tensor:
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    image = torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB)
    return v2.functional.resize(image, [224, 224])


def drafted(content: bytes) -> Tensor:
    image = Image.open(io.BytesIO(content))
    image.draft("RGB", (224, 224))
    return _CROP(image.convert("RGB"))  # type: ignore[no-any-return]


def cheap(content: bytes) -> Tensor:
    """Pixels that cost nothing to decode."""
    return torch.zeros(3, 224, 224, dtype=torch.uint8) + content[-3]


def python_loops(content: bytes, rows: int = 64) -> Tensor:
    image = _SMALL(opened(content))
    table = [min(255, int((value / 255) ** 0.8 * 255)) for value in range(256)]
    pixels = [[table[value] for value in row] for channel in image.tolist() for row in channel]
    for _ in range(rows // 32):
        pixels = [[(a + b) // 2 for a, b in zip(row, row[1:] + row[:1], strict=True)] for row in pixels]
    return torch.tensor(pixels, dtype=torch.uint8).reshape(3, 64, 64)


def vectorised(content: bytes) -> Tensor:
    image = _SMALL(opened(content)).float()
    image = ((image / 255) ** 0.8 * 255).floor()
    for _ in range(2):
        image = (image + image.roll(-1, 2)) // 2
    return image.to(torch.uint8)


def doubles(content: bytes) -> Tensor:
    """Normalised in numpy's float64, and blurred."""
    image = np.asarray(opened(content).resize((224, 224))).astype(np.float64)
    for _ in range(6):
        image = (image + np.roll(image, 1, 0) + np.roll(image, 1, 1)) / 3
    return torch.from_numpy(image.astype(np.uint8)).permute(2, 0, 1)


def hashed(content: bytes) -> Tensor:
    for _ in range(60):
        hashlib.sha256(content).digest()
    return cheap(content)


_AUGMENT = transforms.Compose([transforms.RandAugment(6, 12), _CROP])


def augmented(content: bytes) -> Tensor:
    return _AUGMENT(opened(content))  # type: ignore[no-any-return]


def floats(content: bytes) -> Tensor:
    return torch.zeros(3, 512, 512) + content[-3]


def uint8s(content: bytes) -> Tensor:
    return torch.zeros(3, 512, 512, dtype=torch.uint8) + content[-3]


# Steps


def device(seconds: float) -> Callable[[Any], None]:
    """A GPU that takes so long for a batch, launched by a millisecond of the host."""

    def step(batch: Any) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.001:
            pass
        time.sleep(max(0.0, seconds - 0.001))

    return step


def network(width: int) -> Callable[[Any], Any]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for number in range(20):
        layers += [nn.Conv2d(width if number else 3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, foreach=False)

    def step(batch: Any) -> float:
        images, labels = batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images.float() / 255), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# Loaders


def files(
    folder: Path, change: Callable[[bytes], Any], *, wait: float = 0.0, per_mb: float = 0.0, **options: Any
) -> Any:
    dataset = Files(folder, change, wait=wait, per_mb=per_mb)
    return DataLoader(
        dataset, **{"batch_size": BATCH, "shuffle": True, "num_workers": 2, "persistent_workers": True} | options
    )


def large_folder(sample: Path, side: int = 3000, num: int = 60) -> Path:
    """Some images of the sample, enlarged once, beside the sample or in the temporary folder."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"{sample.name}-{side}"
    folder.mkdir(exist_ok=True)
    sources = sorted(file for file in sample.rglob("*") if file.is_file())[:num]
    for source in sources:
        if not (target := folder / f"{source.stem}.jpg").exists():
            Image.open(source).convert("RGB").resize((side, side * 3 // 4)).save(target, quality=90)
    return folder


def as_lists(samples: list[Any]) -> Any:
    """Each pixel an object of Python."""
    return [image[:, ::4, ::4].tolist() for image, _ in samples], [label for _, label in samples]


def as_tensor(samples: list[Any]) -> Any:
    return torch.stack([image[:, ::4, ::4] for image, _ in samples]), torch.tensor([label for _, label in samples])


def padded(samples: list[Any]) -> Any:
    """Copies row by row into a larger array."""
    images = torch.zeros(len(samples), 3, 256, 256, dtype=torch.uint8)
    for number, (image, _) in enumerate(samples):
        for channel in range(3):
            for row in range(image.shape[1]):
                images[number, channel, row, : image.shape[2]] = image[channel, row]
    return images, torch.tensor([label for _, label in samples])


def padded_at_once(samples: list[Any]) -> Any:
    images = torch.zeros(len(samples), 3, 256, 256, dtype=torch.uint8)
    for number, (image, _) in enumerate(samples):
        images[number, :, : image.shape[1], : image.shape[2]] = image
    return images, torch.tensor([label for _, label in samples])


class Rare(Files):
    """One sample of each eighty comes half a second late."""

    def __getitem__(self, index: int) -> Any:
        if index % 80 == 7:
            time.sleep(0.5)
        return super().__getitem__(index)


def named(samples: list[Any]) -> dict[str, Tensor]:
    return {
        "images": torch.stack([image for image, _ in samples]),
        "labels": torch.tensor([label for _, label in samples]),
    }


class Few(Files):
    """Ninety-six samples; each worker imports and opens for a while before its first."""

    opened = False

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        if not self.opened:
            time.sleep(0.5)
            self.opened = True
        return super().__getitem__(index)


def _slow_files(sample: Path, fixed: bool, **options: Any) -> Made:
    return files(sample, cheap, wait=0.0 if fixed else 0.02, **options), device(0.04)


def _workers(sample: Path, fixed: bool, *, before: int) -> Made:
    loader = files(sample, pillow, num_workers=2 if fixed else before, persistent_workers=fixed or before > 0)
    return loader, device(0.04)


def _epochs(sample: Path, fixed: bool) -> Made:
    loader = DataLoader(Few(sample, cheap), batch_size=BATCH, num_workers=2, persistent_workers=fixed)
    return loader, device(0.03)


def _burst(sample: Path, fixed: bool) -> Made:
    factor = {"prefetch_factor": 16 if fixed else 1}
    return DataLoader(Rare(sample, cheap), batch_size=BATCH, num_workers=2, persistent_workers=True, **factor), device(
        0.1
    )


def _decode(
    before: Callable[[bytes], Any], after: Callable[[bytes], Any], seconds: float = 0.02, **options: Any
) -> Any:
    def make(sample: Path, fixed: bool) -> Made:
        return files(sample, after if fixed else before, **options), device(seconds)

    return make


def _collate(before: Callable[..., Any], after: Callable[..., Any], seconds: float = 0.01) -> Any:
    def make(sample: Path, fixed: bool) -> Made:
        return files(sample, cheap, collate_fn=after if fixed else before, batch_size=32), device(seconds)

    return make


def _tiny(sample: Path, fixed: bool) -> Made:
    """The remedy is a batch of 32 for one; the rate counts samples."""
    images = torch.randint(0, 255, (4096, 3, 8, 8), dtype=torch.uint8)
    dataset = torch.utils.data.TensorDataset(images, torch.arange(4096) % 1000)
    return DataLoader(dataset, batch_size=8 if fixed else 2, shuffle=True), network(8)


def _stream(sample: Path, fixed: bool) -> Made:
    workers = 2 if fixed else 0
    return DataLoader(Stream(Files(sample, pillow)), batch_size=BATCH, num_workers=workers), device(0.04)


def _plain(change: Callable[[bytes], Any], seconds: float, **options: Any) -> Any:
    return lambda sample, fixed: (files(sample, change, **options), device(seconds))


def _in_memory(sample: Path, fixed: bool) -> Made:
    images = torch.randint(0, 255, (512, 3, 64, 64), dtype=torch.uint8)
    dataset = torch.utils.data.TensorDataset(images, torch.arange(512))
    return DataLoader(dataset, batch_size=BATCH, shuffle=True), network(16)


DECODE = ("decode",)
LOOPS = {
    "slow disk": Loop(("storage",), _slow_files),
    "slow disk, dict batches": Loop(("storage",), partial(_slow_files, collate_fn=named)),
    "slow disk, no workers": Loop(
        ("storage", "few_workers"), partial(_slow_files, num_workers=0, persistent_workers=False)
    ),
    "few MB/s": Loop(
        ("storage",), lambda sample, fixed: (files(sample, cheap, per_mb=0.0 if fixed else 0.2), device(0.04))
    ),
    "slow disk and decoding": Loop(
        ("storage",), lambda sample, fixed: (files(sample, pillow, wait=0.0 if fixed else 0.06), device(0.04))
    ),
    "large JPEGs": Loop(
        DECODE, lambda sample, fixed: (files(large_folder(sample, 300 if fixed else 3000), pillow), device(0.04))
    ),
    "large JPEGs, not drafted": Loop(
        DECODE, lambda sample, fixed: (files(large_folder(sample), drafted if fixed else pillow), device(0.04))
    ),
    "Pillow beside a faster decoder": Loop(DECODE, _decode(pillow, decoded_by_torchvision)),
    "transforms in Python loops": Loop(DECODE, _decode(python_loops, vectorised)),
    "transforms in float64": Loop(DECODE, _decode(doubles, pillow)),
    "hashes of files": Loop(DECODE, _decode(hashed, cheap)),
    "RandAugment in Pillow": Loop(DECODE, _decode(augmented, pillow)),
    "no workers": Loop(("few_workers",), partial(_workers, before=0)),
    "one worker on two CPUs": Loop(("few_workers",), partial(_workers, before=1)),
    "no workers, a stream": Loop(("few_workers",), _stream),
    "workers anew each epoch": Loop(("few_workers",), _epochs),
    "bursts, few batches ahead": Loop(("few_workers", "storage"), _burst),
    "batches of lists": Loop(("collate",), _collate(as_lists, as_tensor)),
    "collate row by row": Loop(("collate",), _collate(padded, padded_at_once)),
    "float32 of 512 pixels": Loop(("copy", "decode", "collate"), _decode(floats, uint8s, 0.01, batch_size=64)),
    "tiny batches": Loop(("launches",), _tiny),
    "one CPU": Loop(DECODE, _decode(pillow, cheap), cpus=1),
    "two busy neighbours": Loop(DECODE, _decode(pillow, cheap), neighbours=2),
    "healthy: slow device": Loop((), _plain(pillow, 0.5)),
    "healthy: cheap samples": Loop((), _plain(cheap, 0.1)),
    "healthy: no workers, nothing to load": Loop((), _in_memory),
    "healthy: slow disk, ample workers": Loop((), _plain(cheap, 0.2, num_workers=4)),
    "healthy: item() in each step": Loop((), lambda sample, fixed: (files(sample, cheap, num_workers=1), network(8))),
}
"""Name -> loop. Without a right cause, training and none are right."""
