"""A loader that repeats one batch, to measure the device alone."""

import threading
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from torch import Tensor

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.prefetcher import DevicePrefetcher

NO_END = 1_000_000
_CLOSE_SECONDS = 10.0


class ResidentLoader:
    """`num` copies of a batch that stays on the device.

    finish: the work that a DevicePrefetcher does on the device for each batch. beside: a loader that runs at the same
    time; each step takes a batch of `beside` and discards it.
    """

    def __init__(
        self,
        batch: Batch | RaggedBatch,
        *,
        num: int = NO_END,
        finish: Callable[[Any], Batch] = lambda batch: batch,
        beside: DevicePrefetcher | None = None,
    ) -> None:
        self.batch, self.num, self.finish, self.beside = batch, num, finish, beside
        self._wanted = threading.Semaphore(0)
        self._closed = False
        self._beside: threading.Thread | None = None

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[Batch]:
        if self.beside is not None:
            self._beside = threading.Thread(target=self._throw_away, args=(self.beside,), daemon=True)
            self._beside.start()
        for _ in range(self.num):
            if self._closed:
                return
            self._wanted.release()
            yield self.finish(copy(self.batch))

    def close(self) -> None:
        """End the iteration, and the thread that reads `beside`, which may then be closed."""
        self._closed = True
        self._wanted.release()
        if self._beside is not None:
            self._beside.join(_CLOSE_SECONDS)

    def _throw_away(self, loader: DevicePrefetcher) -> None:
        loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
        for _ in loader:
            self._wanted.acquire()
            if self._closed:
                return


def take_one(loader: DevicePrefetcher) -> Batch | RaggedBatch:
    """A copy of the first batch of a loader, as it arrives on the device."""
    finish, loader.finish = loader.finish, lambda batch: batch  # type: ignore[assignment,return-value]
    batches = iter(loader)
    batch = next(batches)
    tensors: dict[str, Any] = {name: value.clone() for name, value in vars(batch).items() if isinstance(value, Tensor)}
    copied = replace(batch, lease=None, **tensors)
    batches.close()  # type: ignore[attr-defined]
    loader.finish = finish
    return copied
