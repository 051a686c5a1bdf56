"""Writes one tar shard and its part of the index."""

import io
import os
import re
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

from imagenet_opt.errors import BadSample
from imagenet_opt.pack.image import Encoding, prepare
from imagenet_opt.pack.source import Source
from imagenet_opt.pack.target import FolderTarget

_READS_IN_FLIGHT = 16


@dataclass
class ShardPart:
    """A shard's part of the index: one entry per sample in each list, as in ShardIndex.

    num_bytes, checksum: size and zlib.crc32 of the whole file. bytes_in: size of the original images.
    rejected: (place, reason) of each file that was left out of the shard.
    """

    num_bytes: int = 0
    checksum: int = 0
    bytes_in: int = 0
    labels: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)


def write_shard(
    target: FolderTarget, name: str, source: Source, encoding: Encoding, *, first: int, advance: Callable[[], None]
) -> ShardPart:
    """Write all of `source` as samples numbered from `first`; `advance` is called after each sample.

    Raises PackStopped when the file `name` cannot be written or the storage of the source fails; there is no file then.
    """
    part = ShardPart()
    with target.file(name) as file:
        summed = _Summed(file)
        with tarfile.TarFile(fileobj=summed, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[arg-type]
            for i, encoded in enumerate(_read_ahead(source)):
                try:
                    if isinstance(encoded, OSError):
                        raise BadSample(encoded.strerror or str(encoded))
                    image, extension = prepare(encoded, encoding)
                except BadSample as error:
                    part.rejected.append((source.place(i), str(error)))
                else:
                    part.bytes_in += len(encoded)
                    _append(archive, part, source, i, f"{key_of_sample(source.name(i), first + i)}.{extension}", image)
                advance()
        part.num_bytes, part.checksum = summed.tell(), summed.checksum
    return part


def key_of_sample(name: str, number: int) -> str:
    """WebDataset's key of a sample: class/file-00000012, unique by its number.

    WebDataset splits a path at the first dot of the file name, skips names that begin with __, and does not allow
    control characters.
    """
    plain = os.fsencode(os.path.splitext(name)[0]).decode("utf-8", "backslashreplace")
    folder, _, file = re.sub(r"[\x00-\x1f\x7f]", "_", plain).rpartition("/")
    return f"{folder}/{file.replace('.', '_')}-{number:08d}".lstrip("_/")


def _append(archive: tarfile.TarFile, part: ShardPart, source: Source, i: int, name: str, image: bytes) -> None:
    label = int(source.files.labels[i])
    _add_file(archive, name, image)
    padded = -(-len(image) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    part.offsets.append(archive.offset - padded)
    part.sizes.append(len(image))
    part.checksums.append(zlib.crc32(image))
    part.labels.append(label)
    part.names.append(source.name(i))
    _add_file(archive, f"{name.rpartition('.')[0]}.cls", str(label).encode())


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _read_ahead(source: Source) -> Iterator[bytes | OSError]:
    """The files in order, with several reads in flight, since shared storage has a high latency."""
    waiting: deque[Future[bytes | OSError]] = deque()
    threads = ThreadPoolExecutor(_READS_IN_FLIGHT)
    try:
        for i in range(len(source)):
            waiting.append(threads.submit(_read, source, i))
            if len(waiting) > _READS_IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # a running read may retry for a minute


def _read(source: Source, i: int) -> bytes | OSError:
    try:
        return source.read(i)
    except OSError as error:
        return error


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
