"""A loader that gives one batch again and again, so that nothing but the GPU is measured."""

import threading
from collections.abc import Iterator
from copy import copy
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.prefetcher import DevicePrefetcher

_NO_END = 1_000_000
_CLOSE_SECONDS = 10.0


class ResidentLoader:
    """One batch on the device, given again and again; `beside`, if any, makes its own meanwhile, to be discarded.

    beside: is asked for one batch a step, as training would ask.
    """

    def __init__(self, source: DevicePrefetcher, beside: DevicePrefetcher | None = None) -> None:
        self.sampler = source.sampler
        self.batch_sampler = None
        self.finish = source.finish
        self.beside = beside
        self.batch = take_one(source)
        self._wanted = threading.Semaphore(0)
        self._closed = False
        self._beside: threading.Thread | None = None

    def __len__(self) -> int:
        return _NO_END

    def __iter__(self) -> Iterator[Batch]:
        if self.beside is not None:
            self._beside = threading.Thread(target=self._throw_away, args=(self.beside,), daemon=True)
            self._beside.start()
        while not self._closed:
            self._wanted.release()
            yield self.finish(copy(self.batch))

    def close(self) -> None:
        """No more batches, of `beside` neither, which may then be closed."""
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
    """A batch as it comes to the device, in memory of its own."""
    finish, loader.finish = loader.finish, lambda batch: batch  # type: ignore[assignment,return-value]
    batches = iter(loader)
    batch = next(batches)
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    own: dict[str, Any] = {name: value.clone() for name, value in values.items() if isinstance(value, Tensor)}
    kept = replace(batch, ticket=None, **own)
    batches.close()  # type: ignore[attr-defined]
    loader.finish = finish
    return kept
