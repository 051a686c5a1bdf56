"""One pack at a time into a folder."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagenet_opt.data.tar_shard import HALF
from imagenet_opt.errors import ConfigError

log = logging.getLogger(__name__)

CLAIM = "claim"
"""A file that is locked while a pack runs, by the kernel, which frees it however that ends."""


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Keeps other packs out of the folder, until this one ends in any way. Sweeps half-written files."""
    try:
        for folder in (out / "train", out / "val"):
            folder.mkdir(parents=True, exist_ok=True)
        claim = os.open(out / CLAIM, os.O_RDWR | os.O_CREAT, 0o666)  # to write, without which NFS gives no lock
    except OSError as error:
        raise ConfigError(f"cannot write into {out} ({error.strerror}); choose another with out=FOLDER") from error
    try:
        _lock(claim, out)
        _sweep(out)
        try:
            yield
        finally:
            _sweep(out)
    finally:
        os.close(claim)


def _lock(claim: int, out: Path) -> None:
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"another imagenet-opt pack writes into {out} (out); wait for it, or end it") from error
    except OSError as error:
        log.warning(f"{out} (out) knows no locks ({error.strerror}): see that no other pack writes there")


def _sweep(out: Path) -> None:
    for folder in (out / "train", out / "val"):
        for half in folder.rglob(f".*{HALF}"):
            half.unlink()
