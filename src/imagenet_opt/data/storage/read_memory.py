"""Limits the memory of samples that a process has read or is reading."""

import errno
import threading
from collections import deque

READ_AHEAD_BYTES = 128 * 2**20
"""Limit of the encoded bytes that one worker holds: read ahead, and in the portion that it decodes."""


class Postponed(OSError):
    """A sample does not fit into the memory beside the samples that are held."""


class ReadMemory:
    """Memory for `most` bytes of samples. A sample may take half of it, and what does not fit is postponed: a read that
    waited for memory might wait for samples that are needed only after its own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held, self._lock = 0, threading.Lock()
        self._given = deque[int]()  # without the lock, because the garbage collector gives too

    def __reduce__(self) -> tuple[type["ReadMemory"], tuple[int]]:
        """Another process holds no samples yet; a lock cannot be pickled."""
        return ReadMemory, (self.most,)

    def take(self, size: int, must: bool) -> None:
        """Raises Postponed, unless the bytes `must` be read; OSError for a sample that is too large."""
        if size > self.most // 2:
            most = f"the {self.most // 2**21} MiB that an image may have"
            raise OSError(errno.EFBIG, f"{size} bytes are more than {most}; imagenet-opt pack makes images smaller")
        with self._lock:
            while self._given:
                self._held -= self._given.pop()
            if not must and self._held + size > self.most:
                raise Postponed
            self._held += size

    def give(self, size: int) -> None:
        self._given.append(size)
