"""The bytes of the samples of a split, from files or objects; neighbours in a container are read with one request."""

import errno
import os
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt import machine
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.retry import with_whole
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import BadSample
from imagenet_opt.measure.storage.page_cache import drop_pages
from imagenet_opt.object_storage import ObjectStorage, is_url
from imagenet_opt.regular_file import check_size, open_regular, read_part

_OTHER_FILES = 512
"""Number of files besides the containers that a process may have open."""
_GAP = 2**16
"""Bytes between two samples. One request reads both samples if the gap is smaller."""
_REQUEST = 2**22
"""Most bytes of a request for several samples."""


class ByteSource(Protocol):
    """Threads and other processes may share a source."""

    def read(self, name: str, offset: int, size: int | None, etag: str) -> bytes:
        """`size` bytes of the file `name` from `offset`, or fewer at its end; None: all bytes. etag: tag of the content
        when it was listed; "" if unknown. Raises OSError; StorageFailed for an object with another tag."""


class FolderSource:
    """The files of a folder.

    num_kept_open: number of different files, which stay open; 0 closes each file after a read. drop_pages: whether to
    evict the bytes from the page cache after reading, so that the next read goes to the storage.
    """

    def __init__(self, folder: str, *, num_kept_open: int = 0, drop_pages: bool = False) -> None:
        self.folder, self.num_kept_open, self.drop_pages = folder, num_kept_open, drop_pages
        self._open: dict[str, _OpenFile] = {}
        if num_kept_open:
            machine.allow_open_files(num_kept_open + _OTHER_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FolderSource, num_kept_open=self.num_kept_open, drop_pages=self.drop_pages), (self.folder,)

    def read(self, name: str, offset: int, size: int | None, etag: str) -> bytes:
        try:
            with with_whole(self.folder):
                file = self._open.get(name) or _OpenFile(open_regular(f"{self.folder}/{name}"))
                if self.num_kept_open:
                    file = self._open.setdefault(name, file)
                content = read_part(file.descriptor, offset, size)
            if self.drop_pages:
                drop_pages(file.descriptor, offset, size)
            return content
        except OSError:
            self._open.pop(name, None)  # the next try opens the file again, because a stale handle fails forever
            raise


@dataclass(frozen=True)
class _OpenFile:
    """A file that is closed once no thread reads from it."""

    descriptor: int

    def __del__(self) -> None:
        os.close(self.descriptor)


class ObjectSource:
    """Objects below a URL. Forked processes must not share them.

    Each read names the ETag of the listing: an object that was replaced since raises StorageFailed, so that the run
    ends instead of mixing two data sets. whole: whether each read is of a whole object, whose size was listed.
    """

    def __init__(self, url: str, *, whole: bool) -> None:
        self.storage, self.whole = ObjectStorage(url, "data.root", retries=False), whole

    def read(self, name: str, offset: int, size: int | None, etag: str) -> bytes:
        assert size is not None, "the size of each object was listed"
        check_size(size)
        content = self.storage.read(name, start=offset, size=None if self.whole else size, etag=etag)
        if len(content) != size:
            raise OSError(errno.EIO, f"{len(content)} of {size} bytes arrived")
        return content


def source_of(split: Split, *, drop_pages: bool = False) -> ByteSource:
    """The source of a split's bytes. drop_pages: see FolderSource."""
    if is_url(split.place):
        return ObjectSource(split.place, whole=not split.containers)
    return FolderSource(split.place, num_kept_open=len(split.containers), drop_pages=drop_pages)


class RecordStore:
    """Bytes of the samples of a split. Threads and other processes may share it; forked ones not, of a URL.

    source: where the bytes come from; None: from the place of the split. drop_pages: whether to evict the bytes from
    the page cache after reading, so that the next read goes to the storage. checked: uint8 (num_samples,) in the shared
    memory of a run: 1 for samples that fitted their checksum since the run began.
    """

    def __init__(
        self,
        split: Split,
        *,
        source: ByteSource | None = None,
        drop_pages: bool = False,
        checked: Tensor | None = None,
    ) -> None:
        self.split = split
        self.source = source or source_of(split, drop_pages=drop_pages)
        self._shared = (
            torch.zeros(len(split.checksums), dtype=torch.uint8).share_memory_() if checked is None else checked
        )
        self._checked: NDArray[np.uint8] = self._shared.numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RecordStore, source=self.source, checked=self._shared), (self.split,)

    def __len__(self) -> int:
        return len(self.split)

    def name(self, index: int) -> str:
        return self.split.path(index)

    def groups(self, indices: Indices) -> list[Indices]:
        """Positions in `indices` of the samples that one request reads: a file, or samples of one container, in its
        order, with less than 64 KiB between them, up to 4 MiB."""
        split = self.split
        if not split.containers or len(indices) == 1:
            return list(np.arange(len(indices))[:, None])
        containers, starts = split.container_ids[indices], split.offsets[indices]
        order = np.lexsort((starts, containers))
        spans = np.stack([containers, starts, starts + split.sizes[indices]], axis=1)[order].tolist()
        cuts, first = [0], 0
        for i, ((container, _, end), (next_container, next_start, next_end)) in enumerate(pairwise(spans), 1):
            if next_container != container or next_start - end >= _GAP or next_end - spans[first][1] > _REQUEST:
                cuts.append(i)
                first = i
        return np.split(order, cuts[1:]) if len(order) else []

    def read_many(self, indices: Indices) -> list[bytes]:
        """Bytes of each sample, in the order of `indices`. Raises OSError; BadSample for a container that ends too
        soon, or for bytes that do not fit their checksum when they are first read."""
        samples = [b""] * len(indices)
        for group in self.groups(indices):
            if self.split.containers:
                self._read_group(indices, group, samples)
            else:
                samples[int(group[0])] = self._read_file(int(indices[group[0]]))
        return samples

    def _read_file(self, i: int) -> bytes:
        split = self.split
        size = int(split.sizes[i]) if len(split.sizes) else None
        return self.source.read(split.file(i), 0, size, split.etags[i].decode() if len(split.etags) else "")

    def _read_group(self, indices: Indices, group: Indices, samples: list[bytes]) -> None:
        """Read the samples of a group with one request into their places."""
        split, members = self.split, indices[group].tolist()  # numbers of Python, which are faster one by one
        spans = [(start := int(split.offsets[i]), start + int(split.sizes[i])) for i in members]
        container, first, end = int(split.container_ids[members[0]]), spans[0][0], max(stop for _, stop in spans)
        etag = split.etags[container].decode() if len(split.etags) else ""
        encoded = self.source.read(split.file(members[0]), first, end - first, etag)
        if len(encoded) < end - first:
            raise BadSample(
                f"{split.place}/{split.containers[container]} ends at byte {first + len(encoded)}, in the middle of "
                f"{end - first} bytes at {first} (data.root); {self._remedy}"
            )
        for member, place, (start, stop) in zip(members, group.tolist(), spans, strict=True):
            samples[place] = encoded[start - first : stop - first]
            if len(split.checksums) and not self._checked[member]:
                self._check(member, samples[place])

    def _check(self, member: int, encoded: bytes) -> None:
        if zlib.crc32(encoded) != self.split.checksums[member]:
            raise BadSample(f"{self.name(member)} differs from its pack (data.root); {self._remedy}")
        self._checked[member] = 1

    @property
    def _remedy(self) -> str:
        if not len(self.split.checksums):
            return "copy this file again"
        from imagenet_opt.data.index.shard_index import verify_command  # with what opens indexes, which no worker does

        verify = verify_command(self.split.place)
        return f"{verify} lists all damaged shards: remove them, and run the same pack command again"
