"""Small tars, as Python's tarfile and as WebDataset write them."""

import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import webdataset

Members = Iterable[tuple[str, bytes]]


def tar(files: Members, *, format: int = tarfile.PAX_FORMAT, mtime: float = 1.5) -> bytes:
    """A tar of these (name, content). A PAX header is before each member, because of the fraction of its time."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), mtime
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **more: object) -> bytes:
    """The header of a member, without content."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    for key, value in more.items():
        setattr(entry, key, value)
    return entry.tobuf(tarfile.GNU_FORMAT)


def shards_of(folder: Path, images: Path, *, num: int = 2) -> list[Path]:
    """Write the images of a folder for each class as tars of WebDataset, with the numbers of the classes."""
    classes = sorted(each.name for each in images.iterdir())
    files = [file for name in classes for file in sorted((images / name).iterdir())]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i in range(num):
        paths.append(folder / f"s-{i:04d}.tar")
        with open(paths[-1], "wb") as opened, webdataset.TarWriter(opened) as out:
            for number, file in enumerate(files[len(files) * i // num : len(files) * (i + 1) // num]):
                label, ending = classes.index(file.parent.name), file.suffix[1:].lower()
                out.write({"__key__": f"{number:06d}", ending: file.read_bytes(), "cls": label})
        os.utime(paths[-1], (1e9, 1e9))
    return paths
