"""Where the files of a packed split go: a folder, or a bucket; and the lock of a pack."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

from filelock import Timeout

from imagenet_opt.atomic_file import NEW, replacing
from imagenet_opt.data.index.shard_index import COLUMNS, INDEX, PLAN, shard_name, wrong_shards
from imagenet_opt.errors import ConfigError, PackStopped
from imagenet_opt.file_lock import lock_file
from imagenet_opt.object_storage import ObjectStorage, is_url

KEY = "out"
"""The option that names the target, for messages."""
PARTS = "parts"
"""Folder with each finished shard's part of the index, until the index is written."""
CLAIM = "claim"
"""Name of the lock file."""
_READ_AGAIN = {INDEX, PLAN, *(f"{column}.npy" for column in COLUMNS)}
_PART = re.compile(rf"{PARTS}/shard-\d+\.tar\.json")
_THREADS = 32


class FolderTarget:
    """Files of a split are written to `folder`. key: the option that names the folder."""

    def __init__(self, folder: Path, key: str = KEY) -> None:
        self.folder, self.key = folder, key

    @property
    def place(self) -> str:
        """Folder or URL of the split, for messages."""
        return str(self.folder)

    def open(self) -> None:
        """Call before `is_empty` and `wrong_shards`, under the lock of the pack."""

    def is_empty(self) -> bool:
        return not any(self.folder.iterdir())

    def wrong_shards(self, num_bytes: Mapping[int, int]) -> set[int]:
        """Shards that are missing, or do not have these sizes."""
        return set(wrong_shards(self.folder, num_bytes))

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that gets its name only when it is complete and on the disk. Raises PackStopped."""
        path = self.folder / name
        try:
            path.parent.mkdir(exist_ok=True)
            with replacing(path, sync=True) as fresh, fresh.open("wb", buffering=2**20) as file:
                yield file
        except OSError as error:
            raise _stopped(f"cannot write {path}", self.key, error) from error

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file as `file` does."""
        with self.file(name) as file:
            file.write(json.dumps(content).encode())

    def create_json(self, name: str, content: Any) -> None:
        """Write a JSON file, unless another machine has written the file meanwhile; `folder` then has that file."""
        self.write_json(name, content)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def remove_parts(self) -> None:
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)

    def close(self) -> None:
        """Call when the pack is complete."""


class BucketTarget(FolderTarget):
    """Each complete file is uploaded below `url`. `folder` holds the file until then, and the files that are read
    again: plan, index and its parts."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, "data.cache_dir")
        self.storage = ObjectStorage(url, KEY)
        self.sizes: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketTarget, (self.folder, self.storage.url)

    @property
    def place(self) -> str:
        return self.storage.url

    def open(self) -> None:
        """List the bucket; the small files there replace the content of `folder`, which may be of another pack."""
        with self._explained():
            self.sizes = {found.path: found.size for portion in self.storage.objects() for found in portion}
        try:
            shutil.rmtree(self.folder)
            (self.folder / PARTS).mkdir(parents=True)
        except OSError as error:
            raise _stopped(f"cannot write {self.folder}", self.key, error) from error
        self._each(self._copy, _READ_AGAIN.intersection(self.sizes) | set(self._parts()))

    def is_empty(self) -> bool:
        return not self.sizes

    def wrong_shards(self, num_bytes: Mapping[int, int]) -> set[int]:
        return {shard for shard, size in num_bytes.items() if self.sizes.get(shard_name(shard)) != size}

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """As the base class does; the file is uploaded at the end. Raises PackStopped, StorageFailed."""
        with super().file(name) as file:
            yield file
        try:
            with self._explained():
                self.storage.upload(name, self.folder / name)
        finally:
            if name.endswith(".tar"):
                (self.folder / name).unlink()

    def create_json(self, name: str, content: Any) -> None:
        with self._explained(), suppress(FileExistsError):
            self.storage.create(name, json.dumps(content).encode())
        self._copy(name)

    def remove(self, name: str) -> None:
        with self._explained(), suppress(FileNotFoundError):
            self.storage.delete(name)

    def remove_parts(self) -> None:
        self._each(self.remove, self._parts())
        super().remove_parts()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _parts(self) -> list[str]:
        """Names of the parts, in the bucket when the pack began or in `folder`."""
        here = (f"{PARTS}/{path.name}" for path in (self.folder / PARTS).iterdir())
        return sorted({*here, *(name for name in self.sizes if _PART.fullmatch(name))})

    def _copy(self, name: str) -> None:
        with self._explained():
            content = self.storage.read(name)
        with super().file(name) as file:
            file.write(content)

    def _each(self, act: Callable[[str], None], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(act, names))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise PackStopped instead of an OSError of the storage, which repeated its requests for two minutes."""
        try:
            yield
        except OSError as error:
            raise _stopped(f"cannot reach {self.place}", KEY, error) from error


def _stopped(what: str, key: str, error: OSError) -> PackStopped:
    return PackStopped(
        f"{what}: {error.strerror or error}; fix the cause ({key}) and run the same command again: "
        "it resumes where it stopped"
    )


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
