"""One pack at a time into a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout

from imagenet_opt.atomic_file import NEW
from imagenet_opt.errors import ConfigError
from imagenet_opt.file_lock import claim

CLAIM = "claim"
"""A file that is locked while a pack runs."""


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Keeps other packs out of the folder, until this one ends in any way. Sweeps half-written files."""
    try:
        for folder in (out / "train", out / "val"):
            folder.mkdir(parents=True, exist_ok=True)
        held = claim(out / CLAIM)
    except Timeout as error:
        raise ConfigError(f"another imagenet-opt pack writes into {out} (out); wait for it, or end it") from error
    except OSError as error:
        raise ConfigError(f"cannot write into {out} ({error.strerror}); choose another with out=FOLDER") from error
    try:
        _sweep(out)
        try:
            yield
        finally:
            _sweep(out)
    finally:
        held.release()


def _sweep(out: Path) -> None:
    for folder in (out / "train", out / "val"):
        for half in folder.rglob(f".*{NEW}"):
            half.unlink()
