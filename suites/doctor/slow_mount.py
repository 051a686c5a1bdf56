"""A folder seen through FUSE as slow storage: `python -m suites.doctor.slow_mount SOURCE MOUNT COPIES KIND`.

The file MOUNT.json sets how slow, at any time: {"latency": 0.1} seconds of each request, which reads at most 128 KiB
(longer files take several requests, one after the other), {"bytes_per_second": 20e6} of all requests together,
{"first_touch": 0.3} seconds more for the first read of a file since it was mounted, {"every": 50, "late": 2.0} seconds
more for every 50th read of a file, {"jitter": 0.05} seconds more for each request on average, drawn from an exponential
distribution, {"stall": 3.0, "stall_every": 10.0} seconds without an answer at the end of every ten seconds.

KIND "cached": the kernel's page cache keeps files until they are evicted, and opening a file sends no request.
KIND "uncached": each read sends a request, and so does each opening, which takes {"open": 0.1} seconds.
"""

import argparse
import errno
import functools
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suites.faults.flaky_folder import STATS, mounted, tell

COPIES = 16
CACHED, UNCACHED = "cached", "uncached"


@contextmanager
def slow_mount(source: Path, mount: Path, copies: int = COPIES, kind: str = CACHED) -> Iterator[Path]:
    """`source` at `mount`, each file as `copies` files NAME_00.JPEG, NAME_01.JPEG, ... Raises NotTried without FUSE.

    Yields the file of settings, for `suites.faults.flaky_folder.tell`.
    """
    tell(mount.with_suffix(".json"))
    with mounted(__name__, source, mount, str(copies), kind) as control:
        yield control


class SlowFolder:
    """Callbacks of FUSE, as few as possible, because all run in one interpreter: there is no release."""

    use_ns = True

    def __init__(self, source: str, control: Path, copies: int, kind: str) -> None:
        self.source, self.control, self.copies, self.kind = source, control, copies, kind
        self.settings: dict[str, float] = {}
        self.version = (0, 0)
        self.ready: dict[str, float] = {}
        self.readings = itertools.count(1)
        self.line = threading.Lock()
        self.line_free_at = 0.0
        self.attributes = functools.cache(self._attributes)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        return self.attributes(path if "." not in path else self._original(path))

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        yield from (".", "..")
        for entry in os.scandir(self.source + path):
            stem, suffix = os.path.splitext(entry.name)
            many = self.copies > 1 and entry.is_file()
            yield from (f"{stem}_{i:02}{suffix}" for i in range(self.copies)) if many else (entry.name,)

    def open(self, path: str, flags: int) -> int:
        if self.kind == CACHED:
            raise OSError(errno.ENOSYS, "the kernel then opens files without a request, and keeps the pages")
        time.sleep(self._follow().get("open", 0))
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        began = time.monotonic()
        file = os.open(self.source + self._original(path), os.O_RDONLY)
        try:
            content = os.pread(file, size, offset)
        finally:
            os.close(file)
        self._wait(path, offset, began, len(content))
        return content

    def _attributes(self, path: str) -> dict[str, Any]:
        status = os.lstat(self.source + path)
        return {name: getattr(status, f"{name}_ns" if "time" in name else name) for name in STATS}

    def _original(self, path: str) -> str:
        """The file of which `path` is a copy."""
        stem, suffix = os.path.splitext(path)
        return stem[: stem.rindex("_")] + suffix if self.copies > 1 and "_" in stem else path

    def _wait(self, path: str, offset: int, began: float, size: int) -> None:
        settings = self._follow()
        ready = self.ready.setdefault(path, began + settings.get("first_touch", 0))
        late = "every" in settings and offset == 0 and next(self.readings) % settings["every"] == 0
        answer = max(began, ready) + settings.get("latency", 0) + (settings["late"] if late else 0)
        if "jitter" in settings:
            answer += random.expovariate(1 / settings["jitter"])
        sleep_until(after_stall(answer, settings.get("stall", 0), settings.get("stall_every", 1)))
        if "bytes_per_second" in settings:
            with self.line:  # locked when the bytes are ready, so that a late request delays no other
                start = max(self.line_free_at, time.monotonic())
                done = self.line_free_at = start + size / settings["bytes_per_second"]
            sleep_until(done)

    def _follow(self) -> dict[str, float]:
        """The settings of the control file, read again after each change of the file."""
        status = os.stat(self.control)
        if (version := (status.st_ino, status.st_mtime_ns)) != self.version:
            self.settings, self.version = json.loads(self.control.read_text()), version
        return self.settings


def after_stall(moment: float, stall: float, every: float) -> float:
    """The moment, or the end of the stall in which it is."""
    return moment if moment % every < every - stall else (moment // every + 1) * every


def sleep_until(moment: float) -> None:
    if (seconds := moment - time.monotonic()) > 0:
        time.sleep(seconds)


def serve(source: str, mount: str, copies: int, kind: str) -> None:
    import mfusepy

    class Slow(SlowFolder, mfusepy.Operations):  # type: ignore[misc]
        """mfusepy has the other callbacks of FUSE, and answers an OSError with its errno."""

    kept = {"kernel_cache" if kind == CACHED else "direct_io": True, "entry_timeout": 3600, "attr_timeout": 3600}
    wide = {"max_background": 1024, "max_readahead": 2**17}
    folder = Slow(source, Path(mount).with_suffix(".json"), copies, kind)
    mfusepy.FUSE(folder, mount, foreground=True, ro=True, **kept, **wide)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("mount")
    parser.add_argument("copies", type=int, help="how often each file appears")
    parser.add_argument("kind", choices=[CACHED, UNCACHED])
    serve(**vars(parser.parse_args()))
