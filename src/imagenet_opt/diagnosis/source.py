"""Batches without an end from any loader; from a torch DataLoader with what its workers spend for them."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from statistics import fmean, median
from typing import Any

import psutil
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from imagenet_opt.diagnosis.measurements import Parts
from imagenet_opt.diagnosis.worker import TimedBatch, TimedCollate, TimedSamples, TimedStream, new_pause
from imagenet_opt.measure.telemetry.thread_time import thread_time
from imagenet_opt.private_api import drop_persistent_iterator

_KEPT = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor",
    "persistent_workers", "in_order",
)  # fmt: skip
_OF_WORKERS = {"timeout": 0, "multiprocessing_context": None, "prefetch_factor": None, "persistent_workers": False}
"""Arguments that a DataLoader without workers refuses, and their defaults."""


class NoBatch(Exception):
    """The loader gives no further batch, even in a new epoch."""


def rebuilt(loader: DataLoader[Any], pause: Tensor, **settings: Any) -> DataLoader[Any]:
    """A DataLoader of the same samples in batches that are timed, with some other settings.

    It reads a shallow copy of the dataset: what that opens for its first sample, such as a file that two processes must
    not share, is not there when the workers of another DataLoader start.
    """
    samples = loader.dataset
    with suppress(Exception):
        samples = copy(samples)
    options = {name: getattr(loader, name) for name in _KEPT} | settings
    if not options["num_workers"]:
        options |= _OF_WORKERS
    dataset: Any = TimedSamples(samples, pause)
    if isinstance(loader.dataset, IterableDataset):
        dataset = TimedStream(samples, pause)
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = loader.batch_sampler
    else:
        options |= {"batch_size": None, "sampler": loader.sampler}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DataLoader(dataset, collate_fn=TimedCollate(loader.collate_fn), **options)


class Source:
    """The batches of `loader`, in epoch after epoch.

    settings: of a DataLoader that takes its place; None for the loader itself, which is not timed then. in_loop:
    whether batches are now those of the loop as it is, whose parts count. starts: seconds from the start of each epoch
    to its first batch, beyond those of an average batch: the workers start. starting: their sum. lengths: batches of
    each epoch. ahead: batches that workers may have made before a pause, also behind one that they have not: these
    arrive at once, and tell nothing of the speed. last: the latest batch as a TimedBatch. parts, lines, decoding,
    pixels, num_samples, receiving: as in `Measurements`.
    """

    def __init__(self, loader: Any, settings: dict[str, Any] | None = None) -> None:
        self._pause = new_pause()
        self.is_timed = settings is not None
        self.loader = loader if settings is None else rebuilt(loader, self._pause, **settings)
        self.num_workers: int = getattr(self.loader, "num_workers", 0)
        self.ahead = self.num_workers * (getattr(self.loader, "prefetch_factor", 0) or 0)
        self.in_loop = False
        self.starts: list[float] = []
        self.lengths: list[int] = []
        self.starting = self.resumed = self.num_samples = self.pixels = 0.0
        self.parts: list[Parts] = []
        self.receiving: list[float] = []
        self.lines: dict[str, float] = {}
        self.decoding, self._num = 0.0, 0
        self.last: TimedBatch | None = None
        self._pids: set[int] = set()
        self._made: list[float] = []
        self._batches: Iterator[Any] | None = None

    def next(self) -> Any:
        """The next batch; at the end of an epoch, the first of a new one. Raises NoBatch."""
        if self._batches is None:
            return self.begin_epoch()
        began = thread_time()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.lengths.append(self._num)
            return self.begin_epoch()
        if self.in_loop:
            taken = thread_time().since(began)
            self.receiving.append(taken.cpu + taken.queued)
        return self._noted(batch)

    def begin_epoch(self) -> Any:
        """The first batch of a new epoch. Raises NoBatch."""
        began = time.perf_counter()
        self._batches = None  # ends workers that are not persistent
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*(worker processes in total|pin_memory).*")
            self._batches = iter(self.loader)
            batch = next(self._batches, NoBatch)
        if batch is NoBatch:
            raise NoBatch
        usual = taken = time.perf_counter() - began
        if isinstance(batch, TimedBatch):
            usual = median(self._made or [batch.parts.total])
        self._num = 0
        self.starts.append(max(0.0, taken - usual))
        self.starting += self.starts[-1]
        return self._noted(batch)

    def _noted(self, batch: Any) -> Any:
        """The batch itself; what its worker spent is added up."""
        self._num += 1
        if not isinstance(batch, TimedBatch):
            return batch
        self.last = batch
        self._pids.add(batch.pid)
        self._made.append(batch.parts.total)
        for place, seconds in batch.lines.items():
            self.lines[place] = self.lines.get(place, 0.0) + seconds
        self.decoding += batch.decoding
        if self.in_loop and batch.made_at >= self.resumed:
            self.parts.append(batch.parts)
            self.num_samples += (batch.num_samples - self.num_samples) / len(self.parts)
        if batch.pixels:
            values = max((leaf.numel() for leaf in leaves_of(batch.batch) if isinstance(leaf, Tensor)), default=0)
            self.pixels = 3 * batch.pixels / max(1, values)
        return batch.batch

    def pause(self) -> None:
        """Let the workers wait before their next sample."""
        self._pause.fill_(1 if self.num_workers else 0)

    def resume(self) -> None:
        self._pause.fill_(0)
        self.resumed = time.perf_counter()

    def drain(self, seconds: float, *, limit: float) -> float:
        """Seconds per batch of the loader alone, without the starts of its workers, measured for `seconds`, or for
        `limit` if two batches of each worker take longer. All workers finish a batch at about the same time, so only
        whole groups count; the first one, which may have begun earlier, only if there is no other.

        A batch counts when it was made, or when it arrived if that is later in the long run.
        """
        self.resume()
        group, began, now, num = max(1, self.num_workers), self.resumed, self.resumed, 0
        made, came = [began - self.starting], [began - self.starting]
        while now - began < seconds or num < 2 * group or num % group:
            if now - began > limit and num >= group:
                break
            self.next()
            now = time.perf_counter()
            at = self.last.made_at if self.last and self.num_workers else now
            if at >= self.resumed:
                made.append(at - self.starting)
                came.append(now - self.starting)
                num += 1
        last = num // group * group
        first = group if last > group else 0
        return max(each[last] - each[first] for each in (made, came)) / (last - first)

    def worker_bytes(self) -> int:
        """Mean memory of a worker that it shares with no other process; 0 if that is unknown."""
        sizes = [0]
        for pid in self._pids if self.num_workers else ():
            with suppress(psutil.Error):
                sizes.append(psutil.Process(pid).memory_full_info().uss)
        return int(fmean(sizes[1:] or sizes))

    def close(self) -> None:
        self.resume()
        self._batches = self.last = None
        if self.is_timed and self.loader is not None:
            drop_persistent_iterator(self.loader)
        self.loader = None


def num_bytes(batch: Any) -> int:
    """In the tensors and arrays of a batch."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves_of(batch))


def leaves_of(batch: Any) -> list[Any]:
    """Tensors and other objects of a batch, at any depth."""
    return [leaf for part in parts for leaf in leaves_of(part)] if (parts := _parts(batch)) is not None else [batch]


def _parts(batch: Any) -> list[Any] | None:
    if isinstance(batch, dict):
        return list(batch.values())
    if hasattr(batch, "__dataclass_fields__"):
        return [getattr(batch, name) for name in batch.__dataclass_fields__]
    return list(batch) if isinstance(batch, list | tuple) else None


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a batch with its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if (parts := _parts(batch)) is None:
        return batch
    parts = [mapped(part, change) for part in parts]
    if isinstance(batch, list | tuple):
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    changed = copy(batch)
    if isinstance(batch, dict):
        changed.update(zip(batch, parts, strict=True))
    else:
        for name, part in zip(batch.__dataclass_fields__, parts, strict=True):
            object.__setattr__(changed, name, part)
    return changed
