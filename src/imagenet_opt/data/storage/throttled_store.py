"""A store that behaves like slow shared storage, for rehearsals on a fast disk."""

import threading
import time
from collections.abc import Callable

from torch.utils.data import get_worker_info

from imagenet_opt.data.storage.store import Indices, Store

_LINK = threading.Lock()  # no attribute of a store, because locks cannot be pickled


class ThrottledStore:
    """Adds latency, a bandwidth limit and faults to any store.

    latency_seconds: added to each request. bytes_per_second: of all requests of a process together, and of all workers
    of a loader together, each of which has an equal share; None: no limit.
    fault: called with a sample's index before each read; may raise an OSError.
    """

    def __init__(
        self,
        store: Store,
        *,
        latency_seconds: float = 0.0,
        bytes_per_second: float | None = None,
        fault: Callable[[int], None] | None = None,
    ) -> None:
        self.store = store
        self.latency_seconds = latency_seconds
        self.bytes_per_second = bytes_per_second
        self.fault = fault
        self._link_free_at = 0.0

    def __len__(self) -> int:
        return len(self.store)

    def groups(self, indices: Indices) -> list[Indices]:
        return self.store.groups(indices)

    def read_many(self, indices: Indices) -> list[bytes]:
        began = time.monotonic()
        if self.fault is not None:
            for index in indices.tolist():
                self.fault(index)
        encoded = self.store.read_many(indices)
        done = began + self.latency_seconds
        if self.bytes_per_second is not None:
            with _LINK:  # one transfer at a time
                done = max(self._link_free_at, done) + sum(map(len, encoded)) * _num_sharing() / self.bytes_per_second
                self._link_free_at = done
        time.sleep(max(0.0, done - time.monotonic()))
        return encoded

    def name(self, index: int) -> str:
        return self.store.name(index)

    @property
    def settings(self) -> str:
        """The keys that slow down this store."""
        latency = f"data.added_latency_ms={1000 * self.latency_seconds:g}"
        rate = "null" if self.bytes_per_second is None else f"{self.bytes_per_second / 1e6:g}"
        return f"{latency} and data.max_mb_per_second={rate}"


def _num_sharing() -> int:
    """Number of processes that share the limit: in a loader worker, the workers of its loader."""
    worker = get_worker_info()
    return 1 if worker is None else worker.num_workers
