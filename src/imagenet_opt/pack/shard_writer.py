"""Writes tar shards and their parts of the index, one shard per process at a time, so that no image is sent between
processes."""

import io
import os
import re
import tarfile
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

from imagenet_opt.data.index.shard_index import shard_name
from imagenet_opt.data.index.split import Split
from imagenet_opt.errors import BadSample, PackStopped
from imagenet_opt.pack.image import PackOptions, prepare
from imagenet_opt.pack.source import READ_TIMEOUT, name_of, read_images
from imagenet_opt.pack.target import FolderTarget, part_name
from imagenet_opt.processes import pool


@dataclass
class ShardPart:
    """A shard's part of the index. num_bytes, checksum: size and zlib.crc32 of the whole file. bytes_in: size of the
    original images.

    samples: (name, label, offset, size, checksum) of each, as in Split. rejected: (place, reason) of each file
    that was left out of the shard.
    """

    num_bytes: int = 0
    checksum: int = 0
    bytes_in: int = 0
    samples: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ShardTask:
    """Shard `number` to write: all of `index`, as samples numbered from `first`."""

    target: FolderTarget
    number: int
    index: Split
    first: int
    options: PackOptions
    read_timeout: float = READ_TIMEOUT


def make_shards(tasks: Sequence[ShardTask], workers: int, on_progress: Callable[[int, int], None]) -> None:
    """Write the shards of all tasks. workers: number of processes; 0 writes in this process. on_progress: called after
    each shard with (images done, all images).

    Raises PackStopped, also when a process is killed; StorageFailed, ReadTimeout. Complete shards stay.
    """
    done, total = 0, sum(len(task.index) for task in tasks)
    if workers == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about metadata
            for task in tasks:
                write_shard(task)
                on_progress(done := done + len(task.index), total)
    elif tasks:
        try:
            with pool(min(workers, len(tasks)), warnings.simplefilter, ("ignore",)) as processes:
                sizes = {processes.submit(write_shard, task): len(task.index) for task in tasks}
                for finished in as_completed(sizes):
                    finished.result()
                    on_progress(done := done + sizes[finished], total)
        except BrokenProcessPool as error:
            raise PackStopped(
                "a packing process was killed, perhaps because memory ran out; run the same command again: it resumes "
                f"where it stopped. If another process is killed, lower workers={workers}"
            ) from error


def write_shard(task: ShardTask) -> None:
    """Write a shard, then its part of the index.

    Raises PackStopped when a file cannot be written, and StorageFailed and ReadTimeout when the storage of the images
    fails; there is no such file then.
    """
    part, index = ShardPart(), task.index
    with task.target.file(shard_name(task.number)) as file:
        summed = _Summed(file)
        with tarfile.TarFile(fileobj=summed, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[arg-type]
            for i, encoded in enumerate(read_images(index, task.read_timeout)):
                try:
                    if isinstance(encoded, BadSample):
                        raise encoded
                    image, extension = prepare(encoded, task.options)
                except BadSample as error:
                    part.rejected.append((index.path(i), str(error)))
                else:
                    part.bytes_in += len(encoded)
                    name, label = name_of(index, i), int(index.labels[i])
                    key = key_of_sample(name, task.first + i)
                    offset = _add_file(archive, f"{key}.{extension}", image)
                    _add_file(archive, f"{key}.cls", str(label).encode())
                    part.samples.append((name, label, offset, len(image), zlib.crc32(image)))
        part.num_bytes, part.checksum = summed.tell(), summed.checksum
    task.target.write_json(part_name(task.number), asdict(part))


def key_of_sample(name: str, number: int) -> str:
    """WebDataset's key of a sample: class/file-00000012, unique by its number.

    WebDataset splits a path at the first dot of the file name, skips names that begin with __, and does not allow
    control characters.
    """
    inside = os.path.normpath(f"/{os.path.splitext(name)[0]}")  # a name of a class may have ../ in it
    plain = os.fsencode(inside).decode("utf-8", "backslashreplace")
    folder, _, file = re.sub(r"[\x00-\x1f\x7f]", "_", plain).rpartition("/")
    return f"{folder}/{file.replace('.', '_')}-{number:08d}".lstrip("_/")


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> int:
    """Returns the place of the content in the archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
    return archive.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


class _Summed:
    """Writes to a file and computes zlib.crc32 of the written bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.checksum = 0

    def write(self, content: bytes) -> int:
        self.checksum = zlib.crc32(content, self.checksum)
        return self.file.write(content)

    def tell(self) -> int:
        return self.file.tell()
