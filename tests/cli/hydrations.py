"""Small data sets for the hydrate command."""

from pathlib import Path

from imagenet_opt.data.index.files import SplitFiles
from imagenet_opt.hydrate.journal import Journal


def write_split(folder: Path, num: int, size: int = 10) -> Journal:
    """`num` files of `size` bytes that are not fetched yet."""
    images = folder / "images"
    images.mkdir()
    files = SplitFiles(images, num, lambda i: str(images / f"{i:04d}.JPEG"), "f")
    for i in range(num):
        Path(files.path(i)).write_bytes(bytes(size))
    return Journal(folder / "journal", files)
