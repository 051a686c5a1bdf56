"""Draws a small data set on first use, so that training runs without data.

Ten classes of textures and shapes, as real JPEGs of many sizes, with a folder per class. Colours, scale, angle,
contrast, lighting and noise have the same distribution in all classes, so only the form distinguishes them.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from imagenet_opt.data.demo_images import DEMO_CLASSES, draw
from imagenet_opt.errors import ConfigError
from imagenet_opt.machine import usable_cpus

_GENERATOR = 1
"""Goes up whenever the same seed would draw other images."""
_MARKER = "imagenet_opt_demo.json"
_SPLITS = ("train", "val")
_IMAGES_PER_WORKER = 100
"""Fewer are drawn sooner than another process starts."""


def ensure_demo(folder: Path, *, seed: int = 0, num_train: int, num_val: int) -> Path:
    """Return `folder` with train/<class>/*.jpg and val/<class>/*.jpg; draw the images if they are missing or
    incomplete.

    Image i of a class is the same in every data set with that seed. Images are drawn into a temporary folder that is
    then renamed, so several processes may call this at once. A marker file identifies our folders; any other folder
    must be missing or empty. Raises ConfigError for too few images, a folder with other content, or a place that cannot
    be written.
    """
    marker = {"generator": _GENERATOR, "seed": seed, "num_train": num_train, "num_val": num_val}
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
                _draw_all(fresh, folder, seed, (num_train, num_val))
                (fresh / _MARKER).write_text(json.dumps(marker))
                _install(fresh, folder, marker)
    except OSError as error:
        remedy = "set data.cache_dir to a folder that can be written"
        raise ConfigError(f"cannot write the demo images: {error}; {remedy}") from error
    return folder


def _is_complete(folder: Path, marker: dict[str, int]) -> bool:
    """Whether the marker has the same settings and the number of images that it states."""
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
        f"{folder} is to hold the demo images, but something else is there (no {_MARKER} in it) and is left alone; "
        "move it away or set data.cache_dir to another folder"
    )


def _install(fresh: Path, folder: Path, marker: dict[str, int]) -> None:
    """Put `fresh` in place of an incomplete `folder`; keep one that another process has completed meanwhile."""
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


def _draw_all(fresh: Path, folder: Path, seed: int, counts: tuple[int, int]) -> None:
    for split in _SPLITS:
        for name in DEMO_CLASSES:
            (fresh / split / name).mkdir(parents=True)
    workers = min(usable_cpus(), sum(counts) // _IMAGES_PER_WORKER)
    with _progress(folder, sum(counts)) as advance:
        if workers < 2:
            _draw_share(fresh, seed, counts, 0, 1, advance)
        else:
            _draw_in_processes(fresh, seed, counts, workers, advance)


def _draw_in_processes(
    fresh: Path, seed: int, counts: tuple[int, int], workers: int, advance: Callable[[int], None]
) -> None:
    """Draw in fresh interpreters that import only what this file needs.

    Forking after torch has started threads may hang, and multiprocessing's spawn would import everything that train.py
    imports. Each process writes one byte per image to a shared pipe.
    """
    code = "import sys; from imagenet_opt.data.demo import _draw_for_pipe; _draw_for_pipe(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(fresh.absolute()), *map(str, (seed, *counts, workers))]
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
            advance(len(finished))
        for process in processes:
            error = process.communicate()[1].strip().splitlines()
            if process.returncode:
                raise OSError(error[-1] if error else f"a drawing process ended with status {process.returncode}")


def _draw_for_pipe(folder: str, *numbers: str) -> None:
    seed, num_train, num_val, workers, worker = map(int, numbers)
    _draw_share(Path(folder), seed, (num_train, num_val), worker, workers, lambda count: os.write(1, b"." * count))


def _draw_share(
    folder: Path, seed: int, counts: tuple[int, int], worker: int, workers: int, advance: Callable[[int], Any]
) -> None:
    """Draw every `workers`-th image, starting at `worker`; classes alternate."""
    places = [(split, i) for split, count in enumerate(counts) for i in range(count)]
    for split, i in places[worker::workers]:
        index, label = divmod(i, len(DEMO_CLASSES))
        image, quality = draw(seed, split, label, index)
        image.save(folder / _SPLITS[split] / DEMO_CLASSES[label] / f"{index:05d}.jpg", quality=quality)
        advance(1)


@contextmanager
def _progress(folder: Path, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on a terminal, else one line at the start and one at the end."""
    # Here, so that the drawing processes, which show nothing, start without it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    start, finished = time.perf_counter(), 0
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]:.0f} images/s"), TimeRemainingColumn())
    bar = Progress("drawing demo images", *columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    task = bar.add_task("", total=total, rate=0.0)

    def advance(count: int) -> None:
        nonlocal finished
        finished += count
        bar.update(task, completed=finished, rate=finished / (time.perf_counter() - start))

    if bar.disable:
        print(f"drawing {total} demo images into {folder}", file=sys.stderr)
    with bar:
        yield advance
    if bar.disable:
        print(f"drew {total} demo images in {time.perf_counter() - start:.1f} s", file=sys.stderr)
