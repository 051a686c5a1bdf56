"""A small file system that only some processes see, so that filling it harms no one else."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suites.faults.flaky_folder import NotTried


class SmallDisk:
    """A tmpfs at `place` in a mount namespace; `prefix` runs a command in there, `seen` is the place from outside."""

    def __init__(self, keeper: "subprocess.Popen[bytes]", place: Path) -> None:
        self.prefix = ["nsenter", "-t", str(keeper.pid), "-m"]
        self.seen = Path(f"/proc/{keeper.pid}/root{place}")

    def fill(self, leave: int = 0) -> None:
        """Takes all room but so many bytes, also while others write."""
        with (self.seen / "filler").open("wb") as file:
            while (num_bytes := self._free_bytes() - leave) > 0:
                try:
                    return os.posix_fallocate(file.fileno(), 0, num_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.seen)
        return disk.f_bavail * disk.f_bsize

    def free(self) -> None:
        (self.seen / "filler").unlink()


@contextmanager
def small_disk(place: Path, num_bytes: int) -> Iterator[SmallDisk]:
    """Raises NotTried where mounting is not allowed."""
    mount = f"mount -t tmpfs -o size={num_bytes} tmpfs {place} && echo mounted && exec sleep infinity"
    place.mkdir(parents=True, exist_ok=True)
    try:
        keeper = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", mount], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise NotTried("no small disk: needs unshare") from error
    with keeper:
        assert keeper.stdout is not None
        try:
            if keeper.stdout.readline() != b"mounted\n":
                raise NotTried("no small disk: mounting is not allowed here")
            yield SmallDisk(keeper, place)
        finally:
            keeper.kill()
