"""Where the bytes of a split come from: the files of a folder, or the objects below a URL."""

import errno
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from imagenet_opt import machine
from imagenet_opt.data.index.object_index import KEY
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.retry import with_whole
from imagenet_opt.measure.storage.page_cache import drop_pages
from imagenet_opt.object_storage import ObjectStorage, is_url
from imagenet_opt.regular_file import check_size, open_regular, read_part

_OTHER_FILES = 512
"""Number of files besides the containers that a process may have open."""


class ByteSource(Protocol):
    """Threads and other processes may share a source."""

    def read(self, name: str, offset: int, size: int | None, etag: str) -> bytes:
        """`size` bytes of the file `name` from `offset`, or fewer at its end; None: all bytes. etag: tag of the content
        when it was listed; "" if unknown. Raises OSError; StorageFailed for an object with another tag."""


class Files:
    """Files of a folder.

    num_kept_open: number of different files, which stay open; 0 closes each file after a read. drop_pages: whether to
    evict the bytes from the page cache after reading, so that the next read goes to the storage.
    """

    def __init__(self, folder: str, *, num_kept_open: int = 0, drop_pages: bool = False) -> None:
        self.folder, self.num_kept_open, self.drop_pages = folder, num_kept_open, drop_pages
        self._open: dict[str, _OpenFile] = {}
        if num_kept_open:
            machine.allow_open_files(num_kept_open + _OTHER_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Files, num_kept_open=self.num_kept_open, drop_pages=self.drop_pages), (self.folder,)

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


class Objects:
    """Objects below a URL. Forked processes must not share them.

    Each read names the ETag of the listing: an object that was replaced since raises StorageFailed, so that the run
    ends instead of mixing two data sets. whole: whether each read is of a whole object, whose size was listed.
    """

    def __init__(self, url: str, *, whole: bool) -> None:
        self.storage, self.whole = ObjectStorage(url, KEY, retries=False), whole

    def read(self, name: str, offset: int, size: int | None, etag: str) -> bytes:
        assert size is not None, "the size of each object was listed"
        check_size(size)
        content = self.storage.read(name, start=offset, size=None if self.whole else size, etag=etag)
        if len(content) != size:
            raise OSError(errno.EIO, f"{len(content)} of {size} bytes arrived")
        return content


def source_of(split: Split, *, drop_pages: bool = False) -> ByteSource:
    """The source of a split's bytes. drop_pages: see Files."""
    if is_url(split.place):
        return Objects(split.place, whole=not split.containers)
    return Files(split.place, num_kept_open=len(split.containers), drop_pages=drop_pages)
