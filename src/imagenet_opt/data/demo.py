"""Draws a small data set on first use, so that training runs without data.

Ten classes of textures and shapes, as real JPEGs of many sizes, with a folder per class. Colours, scale, angle,
contrast, lighting and noise have the same distribution in all classes, so only the form distinguishes the classes.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from imagenet_opt.data.demo_images import DEMO_CLASSES, draw
from imagenet_opt.display.progress import progress
from imagenet_opt.display.screen import is_screen
from imagenet_opt.errors import ConfigError
from imagenet_opt.machine import usable_cpus

_GENERATOR = 1
"""Version of the images; higher after each change."""
_MARKER = "imagenet_opt_demo.json"
_SPLITS = ("train", "val")
_IMAGES_PER_WORKER = 100
"""Fewest images per process: fewer images are drawn in less time than a process takes to start."""


def ensure_demo(folder: Path, *, num_train: int, num_val: int) -> Path:
    """Return `folder` with train/<class>/*.jpg and val/<class>/*.jpg; draw the images if they are missing or
    incomplete.

    Image i of a class is the same in data sets of any size. Images are drawn into a temporary folder that is then
    renamed, so several processes may call this function at once. A marker file identifies folders of the demo; any
    other folder must be empty. Raises ConfigError for too few images, for a folder with other content, and for a folder
    that cannot be written.
    """
    marker = {"generator": _GENERATOR, "seed": 0, "num_train": num_train, "num_val": num_val}
    if min(num_train, num_val) < len(DEMO_CLASSES):
        raise ConfigError(
            f"data.num_train={num_train}, data.num_val={num_val}: the demo needs at least {len(DEMO_CLASSES)} of each, "
            "one a class"
        )
    try:
        if not _is_complete(folder, marker):
            _check_ours(folder)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
                fresh = Path(scratch, "fresh")
                _draw_all(fresh, folder, (num_train, num_val))
                (fresh / _MARKER).write_text(json.dumps(marker))
                _install(fresh, folder, marker)
    except OSError as error:
        remedy = "set data.cache_dir to a folder that can be written"
        raise ConfigError(f"cannot write the demo images: {error}; {remedy}") from error
    return folder


def _is_complete(folder: Path, marker: dict[str, int]) -> bool:
    """Whether `folder` has this marker, and as many images as the marker states."""
    counts = [sum(1 for _ in (folder / split).glob("*/*.jpg")) for split in _SPLITS]
    return _read_marker(folder) == marker and counts == [marker["num_train"], marker["num_val"]]


def _read_marker(folder: Path) -> Any:
    try:
        return json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return None


def _check_ours(folder: Path) -> None:
    if not folder.exists() or _read_marker(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    raise ConfigError(
        f"cannot draw the demo images into {folder}: the folder has other content (no {_MARKER} in it); move the "
        "folder away or set data.cache_dir to another folder"
    )


def _install(fresh: Path, folder: Path, marker: dict[str, int]) -> None:
    """Replace an incomplete `folder` by `fresh`; keep a folder that another process has completed meanwhile."""
    while not _is_complete(folder, marker):
        _check_ours(folder)
        if _read_marker(folder):
            with suppress(FileNotFoundError):
                folder.rename(tempfile.mkdtemp(dir=fresh.parent))
        try:
            fresh.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _draw_all(fresh: Path, folder: Path, counts: tuple[int, int]) -> None:
    """Draw all images into `fresh`: with a bar on a terminal, else with a line at the start and a line at the end."""
    for split in _SPLITS:
        for name in DEMO_CLASSES:
            (fresh / split / name).mkdir(parents=True)
    total, workers = sum(counts), min(usable_cpus(), sum(counts) // _IMAGES_PER_WORKER)
    drawing = _draw_share(fresh, counts, 0, 1) if workers < 2 else _draw_in_processes(fresh, counts, workers)
    terminal, began, finished = is_screen(sys.stderr), time.perf_counter(), 0
    if not terminal:
        print(f"drawing {total} demo images into {folder}", file=sys.stderr)
    with progress("drawing demo images", "images") if terminal else nullcontext() as show:
        for num_images in drawing:
            finished += num_images
            if show is not None:
                show(finished, total)
    if not terminal:
        print(f"drew {total} demo images in {time.perf_counter() - began:.1f} s", file=sys.stderr)


def _draw_in_processes(fresh: Path, counts: tuple[int, int], workers: int) -> Iterator[int]:
    """Draw in fresh interpreters that import only this module. Yields numbers of finished images.

    Forking after torch has started threads may hang, and multiprocessing's spawn would import everything that train.py
    imports. Each process writes one byte per image to a shared pipe.
    """
    code = "import sys; from imagenet_opt.data.demo import _draw_for_pipe; _draw_for_pipe(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(fresh.absolute()), *map(str, (*counts, workers))]
    receive, send = os.pipe()
    with ExitStack() as ends_with_all, open(receive, "rb", buffering=0) as pipe:
        with open(send, "wb"):
            processes = [
                ends_with_all.enter_context(
                    subprocess.Popen([*command, str(worker)], stdout=send, stderr=subprocess.PIPE, text=True)
                )
                for worker in range(workers)
            ]
        while finished := pipe.read(4096):
            yield len(finished)
        for process in processes:
            error = process.communicate()[1].strip().splitlines()
            if process.returncode:
                raise OSError(error[-1] if error else f"a drawing process ended with status {process.returncode}")


def _draw_for_pipe(folder: str, *numbers: str) -> None:
    num_train, num_val, workers, worker = map(int, numbers)
    for _ in _draw_share(Path(folder), (num_train, num_val), worker, workers):
        os.write(1, b".")


def _draw_share(folder: Path, counts: tuple[int, int], worker: int, workers: int) -> Iterator[int]:
    """Draw every `workers`-th image, starting at `worker`; classes alternate. Yields a count of 1 after each image."""
    places = [(split, i) for split, count in enumerate(counts) for i in range(count)]
    for split, i in places[worker::workers]:
        index, label = divmod(i, len(DEMO_CLASSES))
        image, quality = draw(split, label, index)
        image.save(folder / _SPLITS[split] / DEMO_CLASSES[label] / f"{index:05d}.jpg", quality=quality)
        yield 1
