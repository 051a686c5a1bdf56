"""Locks an output folder, so that one pack at a time writes into it."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

from filelock import Timeout

from imagenet_opt.atomic_file import NEW
from imagenet_opt.errors import ConfigError
from imagenet_opt.file_lock import lock_file
from imagenet_opt.object_storage import is_url

CLAIM = "claim"
"""Name of the lock file."""


@contextmanager
def pack_lock(out: Path, place: str, key: str) -> Iterator[None]:
    """Lock the folder until this pack ends in any way. Before and after, remove half-written files; for a bucket also
    shards, whose upload was stopped.

    place: the target of the pack, whose files are written to `out`. key: the option that names `out`.
    """
    try:
        for folder in (out / "train", out / "val"):
            folder.mkdir(parents=True, exist_ok=True)
        held = lock_file(out / CLAIM)
    except Timeout as error:
        raise ConfigError(f"another imagenet-opt pack writes into {place} (out); wait for it, or end it") from error
    except OSError as error:
        raise ConfigError(
            f"cannot write into {out} ({error.strerror}); choose another folder with {key}=FOLDER"
        ) from error
    with ExitStack() as stack:
        stack.callback(held.release)
        patterns = (f".*{NEW}", "*.tar") if is_url(place) else (f".*{NEW}",)
        stack.callback(_sweep, out, patterns)
        _sweep(out, patterns)
        yield


def _sweep(out: Path, patterns: Iterable[str]) -> None:
    for folder, pattern in product((out / "train", out / "val"), patterns):
        for leftover in folder.rglob(pattern):
            leftover.unlink()
