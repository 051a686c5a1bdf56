"""Stores of packed samples: shards in a folder, or objects below a URL."""

import os
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt import machine
from imagenet_opt.data.index.object_index import KEY
from imagenet_opt.data.index.object_shards import ObjectShardIndex
from imagenet_opt.data.index.shard_index import ShardIndex, verify_command
from imagenet_opt.data.shared_buffers import shared_bytes
from imagenet_opt.data.storage.retry import with_whole
from imagenet_opt.errors import BadSample
from imagenet_opt.measure.storage.page_cache import drop_pages
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.regular_file import check_size, open_regular, read_part

_GAP = 2**16
"""Bytes between two samples. One request reads both samples if the gap is smaller."""
_REQUEST = 2**22
"""Most bytes of a request for several samples."""
_OTHER_FILES = 512
"""Number of files besides the shards that a process may have open."""


class ShardStore:
    """Bytes of packed samples; neighbours are read with one request. Threads and other processes may share it.

    drop_pages: whether to evict the bytes from the page cache after reading, so that the next read goes to the storage.
    checked: uint8 (num_samples,) in the shared memory of a run: 1 for samples that fitted their checksum since the run
    began.
    """

    def __init__(self, index: ShardIndex, *, drop_pages: bool = False, checked: Tensor | None = None) -> None:
        self.index = index
        self.drop_pages = drop_pages
        self._shared = shared_bytes(len(index)).zero_() if checked is None else checked
        self._checked: NDArray[np.uint8] = self._shared.numpy()
        self._files: dict[int, _OpenFile] = {}
        machine.allow_open_files(len(index.shards) + _OTHER_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), drop_pages=self.drop_pages, checked=self._shared), (self.index,)

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, indices: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Positions in `indices` of the samples that one request reads: samples of one shard, in its order, with less
        than 64 KiB between them, up to 4 MiB."""
        shards, starts = self.index.shard_ids[indices], self.index.offsets[indices]
        order = np.lexsort((starts, shards))
        spans = np.stack([shards, starts, starts + self.index.sizes[indices]], axis=1)[order].tolist()
        cuts, first = [0], 0
        for i, ((shard, _, end), (next_shard, next_start, next_end)) in enumerate(pairwise(spans), 1):
            if next_shard != shard or next_start - end >= _GAP or next_end - spans[first][1] > _REQUEST:
                cuts.append(i)
                first = i
        return np.split(order, cuts[1:]) if len(order) else []

    def read_many(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Bytes of each sample, in the order of `indices`. Raises OSError; BadSample for a shard that ends too soon,
        or for bytes that do not fit their checksum when they are first read."""
        samples = [b""] * len(indices)
        for group in self.groups(indices):
            members = indices[group]
            starts = self.index.offsets[members]
            ends = starts + self.index.sizes[members]
            shard, first = int(self.index.shard_ids[members[0]]), int(starts[0])
            encoded = self._read(shard, first, int(ends.max()) - first)
            spans = zip(members.tolist(), group.tolist(), starts - first, ends - first, strict=True)
            for member, place, start, end in spans:
                samples[place] = encoded[start:end]
                if not self._checked[member]:
                    self._check(member, samples[place])
        return samples

    def _check(self, member: int, encoded: bytes) -> None:
        if zlib.crc32(encoded) != self.index.checksums[member]:
            raise BadSample(f"{self.name(member)} differs from its pack (data.root); {self._remedy}")
        self._checked[member] = 1

    @property
    def _remedy(self) -> str:
        verify = verify_command(self.index.place)
        return f"{verify} lists all damaged shards: remove them, and run the same pack command again"

    def name(self, index: int) -> str:
        return self.index.path(index)

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        path = self.index.folder / self.index.shards[shard]
        try:
            with with_whole(self.index.folder):
                file = self._files.get(shard) or self._files.setdefault(shard, _OpenFile(open_regular(path)))
            encoded = read_part(file.descriptor, offset, size)
            if self.drop_pages:
                drop_pages(file.descriptor, offset, size)
        except OSError:
            self._files.pop(shard, None)  # the next try opens the shard again, because a stale handle fails forever
            raise
        if len(encoded) < size:
            raise BadSample(
                f"{path} ends at byte {offset + len(encoded)}, in the middle of {size} bytes at {offset} (data.root); "
                f"{self._remedy}"
            )
        return encoded


@dataclass(frozen=True)
class _OpenFile:
    """A file that is closed once no thread reads from it."""

    descriptor: int

    def __del__(self) -> None:
        os.close(self.descriptor)


class ObjectShardStore(ShardStore):
    """Images in packed shards below a URL; see ShardStore and, for replaced shards, ObjectStore."""

    index: ObjectShardIndex

    def __init__(self, index: ObjectShardIndex, **more: Any) -> None:
        super().__init__(index, **more)
        self.storage = ObjectStorage(index.url, KEY, retries=False)

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        check_size(size)
        index = self.index
        return self.storage.read(index.shards[shard], start=offset, size=size, etag=index.shard_etags[shard])
