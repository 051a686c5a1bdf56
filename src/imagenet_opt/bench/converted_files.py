"""Folders of converted files, which are kept for later benchmarks."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def fingerprint(program: str, files: Iterable[tuple[object, ...]]) -> str:
    """A hash that changes with every file and with the program that converts. files: for each file its path, then
    other values that matter. Raises OSError."""
    digest = hashlib.sha256(program.encode())
    for path, *values in files:
        about = os.stat(str(path))
        digest.update(os.fsencode("\0".join(map(str, (path, *values, about.st_size, about.st_mtime_ns))) + "\n"))
    return digest.hexdigest()[:24]


def write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder completely or not at all, unless it exists. write: fills an empty folder. Raises OSError."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new_") as scratch:
        new = Path(scratch, "files")
        new.mkdir()
        write(new)
        try:
            os.replace(new, folder)
        except OSError:
            if not folder.is_dir():  # if the folder exists, another process was faster
                raise
