"""Writes the files of a benchmark again as JPEGs of one quality, so that all loaders read the same bytes."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from imagenet_opt import machine
from imagenet_opt.bench.converted_files import fingerprint, write_once
from imagenet_opt.data.index.folder_index import FileIndex, scan_split
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import BadSample, DataError
from imagenet_opt.pack.image import Encoding, prepare

_ENCODING = Encoding(quality=90, reencode="all")
"""The quality at which FFCV writes its own files."""


def encoded_again(index: FileIndex, folder: Path) -> FileIndex:
    """The files of `index`, encoded again in a folder below `folder`, which is kept for the next benchmark.

    Files that cannot be decoded are left out. Raises DataError if nothing can be written.
    """
    try:
        paths = ((index.path(number),) for number in range(len(index)))
        target = folder / f"same-bytes-{fingerprint('', paths)}"
        write_once(target, partial(_write, index))
    except OSError as error:
        raise DataError(f"cannot write the files again (data.cache_dir): {error}") from error
    return scan_split(target, "train")


def _write(index: FileIndex, folder: Path) -> None:
    def write(number: int) -> None:
        try:
            encoded, extension = prepare(Path(index.path(number)).read_bytes(), _ENCODING)
        except BadSample:
            return
        class_folder = folder / "train" / index.classes[index.labels[number]]
        (class_folder / f"{number}.{extension}").write_bytes(encoded)

    for name in index.classes:
        (folder / "train" / name).mkdir(parents=True)
    with ThreadPoolExecutor(machine.usable_cpus()) as threads, progress("encoding again", "images") as show:
        for number, _ in enumerate(threads.map(write, range(len(index))), 1):
            show(number, len(index))
