"""A folder seen through FUSE, whose reads fail or hang on demand: `python -m suites.faults.flaky_folder SOURCE MOUNT`.

What goes wrong is told in the file MOUNT.json: `{"errno": 5, "share": 0.1}` fails one read in ten with EIO,
`{"hang": 20, "name": "image003"}` lets reads of files with that in their path hang for 20 s, `"times": 1` only once.
"""

import errno
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class NotTried(Exception):
    """This machine does not allow the fault."""


STATS = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")


@contextmanager
def flaky_folder(source: Path, mount: Path) -> Iterator[Path]:
    """`source` at `mount`; gives the file that says what goes wrong. Raises NotTried without FUSE."""
    with mounted(__name__, source, mount) as control:
        yield control


@contextmanager
def mounted(server: str, source: Path, mount: Path, *settings: str) -> Iterator[Path]:
    """The module `server` serving `source` at `mount`; gives the file that tells it what to do. Raises NotTried."""
    if importlib.util.find_spec("mfusepy") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NotTried("no FUSE: needs /dev/fuse, libfuse and pip install mfusepy")
    mount.mkdir()
    command = [sys.executable, "-m", server, str(source), str(mount), *settings]
    daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not os.path.ismount(mount):
            if daemon.poll() is not None:
                raise NotTried("no FUSE: the folder cannot be mounted")
            time.sleep(0.05)
        yield mount.with_suffix(".json")
    finally:
        subprocess.run(["fusermount", "-u", "-z", str(mount)], check=False, stderr=subprocess.DEVNULL)
        daemon.terminate()
        daemon.wait()


def tell(control: Path, **fault: Any) -> None:
    """Sets what goes wrong from now on; nothing without arguments."""
    fresh = control.with_suffix(".new")
    fresh.write_text(json.dumps(fault))
    os.replace(fresh, control)


def serve(source: str, mount: str) -> None:
    import mfusepy

    class Flaky(mfusepy.Operations):  # type: ignore[misc]
        use_ns = False
        hung = 0

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            try:
                status = os.lstat(source + path)
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
            return {name: getattr(status, name) for name in STATS}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(source + path)]

        def open(self, path: str, flags: int) -> int:
            return os.open(source + path, flags)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            self.suffer(path)
            return os.pread(fh, size, offset)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def suffer(self, path: str) -> None:
            control = Path(mount).with_suffix(".json")
            fault = json.loads(control.read_text()) if control.exists() else {}
            if fault.get("name", "") not in path or random.random() >= fault.get("share", 1):
                return
            if "errno" in fault:
                raise mfusepy.FuseOSError(fault["errno"])
            if "hang" in fault and self.hung < fault.get("times", sys.maxsize):
                self.hung += 1
                time.sleep(fault["hang"])

    mfusepy.FUSE(Flaky(), mount, foreground=True, ro=True)


if __name__ == "__main__":
    serve(*sys.argv[1:3])
