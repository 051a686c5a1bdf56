"""How the hydrate command is called."""

from pathlib import Path

from imagenet_opt.data.index.files import SplitFiles
from imagenet_opt.hydrate.hydrate import Part
from imagenet_opt.hydrate.journal import Journal


def numbered(folder: Path, num: int) -> SplitFiles:
    return SplitFiles(folder, num, lambda i: str(folder / f"{i:04d}.JPEG"), "f")


def part_of(folder: Path, num: int, size: int = 10) -> Part:
    files = numbered(folder / "images", num)
    files.folder.mkdir()
    for i in range(num):
        Path(files.path(i)).write_bytes(bytes(size))
    return Part(files, Journal(folder / "journal", files))
