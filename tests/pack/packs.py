"""Small sources of images, and what a pack of them holds."""

import csv
import gc
import os
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image

from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.pack.image import PackOptions
from tests.data.conftest import encoded

SMALL = PackOptions(shard_mb=0.02)


def jpeg(width: int = 32, height: int = 24, *, mode: str = "RGB", seed: int = 0, **save: object) -> bytes:
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype=np.uint8)
    return encoded(Image.fromarray(pixels.squeeze(), mode=None if mode != "CMYK" else "CMYK"), **save)


def png(pixels: np.ndarray) -> bytes:
    return encoded(Image.fromarray(pixels), "PNG")


def tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return root


def small_tree(root: Path) -> Path:
    """Two classes of four images, in train/ and val/."""
    names = [f"{split}/{name}/{i}.JPEG" for split in ("train", "val") for name in "ab" for i in range(4)]
    return tree(root, {name: jpeg(seed=i) for i, name in enumerate(names)})


def names_of(index: Split) -> list[str]:
    places = index.name_offsets.tolist()
    return [os.fsdecode(index.names[start:end].tobytes()) for start, end in pairwise(places)]


def read(index: Split) -> list[bytes]:
    return RecordStore(index).read_many(np.arange(len(index)))


def samples_of(index: Split) -> list[tuple[str, bytes]]:
    """The class and the bytes of each image."""
    return [(index.classes[label], image) for label, image in zip(index.labels, read(index), strict=True)]


def samples(folder: Path, *steps: Callable[[Any], Any]) -> list[Any]:
    """Samples as WebDataset reads them; WebDataset leaves its files open until garbage collection."""
    pipeline = webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for step in steps:
            pipeline = step(pipeline)
        actual = list(pipeline)
        del pipeline
        gc.collect()
    return actual


def rejected(folder: Path) -> list[list[str]]:
    with open(folder / "rejected.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
