"""Where the files of a packed split go: a folder, or a bucket; and the lock of a pack."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import Timeout

from imagenet_opt.atomic_file import NEW, replacing
from imagenet_opt.data.index.shard_index import COLUMNS, INDEX, PLAN, shard_name, wrong_shards
from imagenet_opt.errors import ConfigError, PackStopped
from imagenet_opt.file_lock import lock_file
from imagenet_opt.object_storage import ObjectStorage

KEY = "out"
"""The option that names the target, for messages."""
_PARTS = "parts"
CLAIM = "claim"
"""Name of the lock file."""
_READ_AGAIN = re.compile(rf"{INDEX}|{PLAN}|({'|'.join(COLUMNS)})\.npy|{_PARTS}/shard-\d+\.tar\.json")
_THREADS = 32


def part_name(shard: int) -> str:
    """Name of the file with a finished shard's part of the index, until the index is written."""
    return f"{_PARTS}/{shard_name(shard)}.json"


class FolderTarget:
    """Files of a split are written to `folder`. key: the option that names the folder. leftovers: names of files that
    a killed process leaves there."""

    key = KEY
    leftovers: tuple[str, ...] = (f".*{NEW}",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def finish(self) -> None:
        """Call when the index is complete. The parts are removed."""
        shutil.rmtree(self.folder / _PARTS, ignore_errors=True)


class BucketTarget(FolderTarget):
    """Each complete file is uploaded below `url`. `folder` holds the file until then, and the files that are read
    again: plan, index and its parts."""

    key = "data.cache_dir"
    leftovers = (*FolderTarget.leftovers, "*.tar")

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.storage = ObjectStorage(url, KEY)
        self.sizes: dict[str, int] = {}

    @property
    def place(self) -> str:
        return self.storage.url

    def open(self) -> None:
        """List the bucket; the small files there replace the content of `folder`, which may be of another pack."""
        with self.storage.explained():
            self.sizes = {found.path: found.size for portion in self.storage.objects() for found in portion}
        try:
            shutil.rmtree(self.folder)
            (self.folder / _PARTS).mkdir(parents=True)
        except OSError as error:
            raise _stopped(f"cannot write {self.folder}", self.key, error) from error
        self._each(self._copy, filter(_READ_AGAIN.fullmatch, self.sizes))

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
            with self.storage.explained():
                self.storage.upload(name, self.folder / name)
        finally:
            if name.endswith(".tar"):
                (self.folder / name).unlink()

    def remove(self, name: str) -> None:
        with self.storage.explained(), suppress(FileNotFoundError):
            self.storage.delete(name)

    def finish(self) -> None:
        self._each(self.remove, [f"{_PARTS}/{path.name}" for path in (self.folder / _PARTS).iterdir()])
        shutil.rmtree(self.folder, ignore_errors=True)

    def _copy(self, name: str) -> None:
        with self.storage.explained():
            content = self.storage.read(name)
        with super().file(name) as file:
            file.write(content)

    def _each(self, act: Callable[[str], None], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(act, names))


def _stopped(what: str, key: str, error: OSError) -> PackStopped:
    return PackStopped(
        f"{what}: {error.strerror or error}; fix the cause ({key}) and run the same command again: "
        "it resumes where it stopped"
    )


@contextmanager
def pack_lock(targets: Sequence[FolderTarget]) -> Iterator[None]:
    """Lock the folder of the targets, and open them, until this pack ends in any way. Before and after, remove
    half-written files."""
    out, key = targets[0].folder.parent, targets[0].key
    try:
        for target in targets:
            target.folder.mkdir(parents=True, exist_ok=True)
        held = lock_file(out / CLAIM)
    except Timeout as error:
        place = targets[0].place.rpartition("/")[0]
        raise ConfigError(f"another imagenet-opt pack writes into {place} (out); wait for it, or end it") from error
    except OSError as error:
        raise ConfigError(
            f"cannot write into {out} ({error.strerror}); choose another folder with {key}=FOLDER"
        ) from error
    try:
        _sweep(targets)
        for target in targets:
            target.open()
        yield
    finally:
        _sweep(targets)
        held.release()


def _sweep(targets: Sequence[FolderTarget]) -> None:
    for target in targets:
        for leftover in [file for name in target.leftovers for file in target.folder.rglob(name)]:
            leftover.unlink()
