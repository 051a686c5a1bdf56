"""Stores of objects below a URL: one image each, or packed shards.

Each read names the ETag of its listing, so a replaced object ends the run instead of mixing with the old data set.
"""

import errno
from typing import Any

import numpy as np

from imagenet_opt.data.index.object_index import KEY, ObjectIndex
from imagenet_opt.data.index.object_shards import ObjectShardIndex
from imagenet_opt.data.index.shard_index import ShardStore
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import printable
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.regular_file import check_size


class ObjectStore:
    """Images that are objects; each is one request. Threads may share the store, and forked processes must not."""

    def __init__(self, index: ObjectIndex) -> None:
        self.index = index
        self.storage = ObjectStorage(index.url, KEY, retries=False)

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, indices: Indices) -> list[Indices]:
        return list(np.arange(len(indices))[:, None])

    def read_many(self, indices: Indices) -> list[bytes]:
        """Bytes of each sample. Raises OSError; StorageFailed for an object that was replaced after its listing."""
        return [self._read(i) for i in indices.tolist()]

    def name(self, index: int) -> str:
        return printable(self.index.path(index))

    def _read(self, i: int) -> bytes:
        check_size(size := int(self.index.sizes[i]))
        content = self.storage.read(self.index.relative(i), etag=self.index.etags[i].decode())
        if len(content) != size:
            raise OSError(errno.EIO, f"{len(content)} of {size} bytes arrived")
        return content


class ObjectShardStore(ShardStore):
    """Images in packed shards, read by ranges; neighbours come with one request. Threads may share the store, and
    forked processes must not."""

    index: ObjectShardIndex

    def __init__(self, index: ObjectShardIndex) -> None:
        self.index = index
        self.storage = ObjectStorage(index.url, KEY, retries=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectShardStore, (self.index,)

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        index = self.index
        return self.storage.read(index.shards[shard], start=offset, size=size, etag=index.shard_etags[shard])
