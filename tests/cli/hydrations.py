"""Small data sets for the hydrate command."""

from pathlib import Path

import numpy as np

from imagenet_opt.data.index.files import SplitFiles
from imagenet_opt.hydrate.hydrate import Fetch


def write_split(folder: Path, num: int, size: int = 10) -> Fetch:
    """`num` files of `size` bytes that are not fetched yet."""
    images = folder / "images"
    images.mkdir()
    files = SplitFiles(images, num, lambda i: str(images / f"{i:04d}.JPEG"))
    for i in range(num):
        Path(files.path(i)).write_bytes(bytes(size))
    return Fetch(files, np.ones(num, bool))
