"""Copies batches to the device while the device computes."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from imagenet_opt.data.background_iterator import BackgroundIterator
from imagenet_opt.data.bad_samples import BadSamples
from imagenet_opt.data.batch import Batch, LoadStats, RaggedBatch
from imagenet_opt.data.device_copies import TOO_LARGE, DeviceCopies, Sent
from imagenet_opt.data.keys import BatchKeySampler
from imagenet_opt.data.loader_workers import explain_worker_death
from imagenet_opt.data.order import check_fingerprint
from imagenet_opt.data.shared_buffers import SharedBufferPool
from imagenet_opt.data.storage.cached_store import Counts
from imagenet_opt.data.storage.retry import FailureCounts
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.out_of_memory import explained

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 1.0
"""Time for workers to end by themselves. Workers that wait for storage are terminated after this time."""


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise the errors of a DataLoader's workers without their traceback, and WorkerDied for a killed worker."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        if (death := explain_worker_death(error)) is None:
            raise
        raise death from error
    except ImagenetOptError as error:
        kind = type(error)  # in a worker, the DataLoader puts a traceback and this name before the message
        _, name, message = str(error).rpartition(f"{kind.__module__}.{kind.__qualname__}: ")
        if not name:
            raise
        raise kind(message.strip()) from error


class DevicePrefetcher:
    """Wraps a loader: pins the next batch and copies it on a side stream while the device computes with the current
    batch.

    Parts of a large batch are copied as they come, and joined on the device. `finish` then makes images of the batch on
    the compute stream. On a CPU nothing is copied. copies: see LoaderOptions; "pinned" and "pageable" copy on the
    compute stream when a batch is requested. classes: names of the labels 0, 1, ... The length is that of the whole
    epoch, also after a resume within it.

    Raises WorkerDied, with the likely cause, if a worker process is killed; OutOfMemory if the device has no room for a
    batch.
    """

    def __init__(
        self,
        loader: "DataLoader[Batch | RaggedBatch]",
        keys: BatchKeySampler,
        *,
        fingerprint: Mapping[str, int],
        batch_size: int,
        device: torch.device,
        finish: Callable[[Batch | RaggedBatch], Batch],
        bad: BadSamples,
        buffers: SharedBufferPool,
        copies: str = "ahead",
        classes: tuple[str, ...] = (),
    ) -> None:
        self.loader = loader
        self.sampler = keys  # Lightning calls its set_epoch, and reads batch_sampler
        self.batch_sampler = None
        self.fingerprint = fingerprint
        self.batch_size = batch_size
        self.classes = classes
        self.device = device
        self.finish = finish
        self.bad = bad
        self.buffers = buffers
        self.copies = DeviceCopies(device, copies, buffers)
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._drained: dict[str, float] = {}
        self._ahead: BackgroundIterator[list[Sent]] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        with worker_errors():
            yield from self._batches()

    def state_dict(self) -> dict[str, int]:
        """The position after the batches delivered so far, and what decides the order of the samples. The state is the
        same in all processes and for any number of workers. It counts an epoch as finished when its loop has ended."""
        epoch, step = self.sampler.position
        return {"epoch": epoch, "step": step, **self.fingerprint}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Let the next iteration continue in epoch `sampler.epoch`, after the batches that `state_dict` counts. Raises
        CheckpointMismatch for a state of other data, or of another seed, batch size or order."""
        check_fingerprint(state_dict, self.fingerprint, otherwise="do not load this state")
        self.sampler.seek(state_dict["epoch"], state_dict["step"])

    def close(self) -> None:
        """End the thread and the workers, even if they wait for storage. The garbage collector would wait five
        seconds for each worker, because it destroys the worker's queue first."""
        iterator: Any = self.loader._iterator  # of persistent workers; torch has no public name for it
        if iterator is not None:
            self._end(iterator)
            self.loader._iterator = None
        self.copies.close()

    def _end(self, iterator: Any) -> None:
        if iterator._worker_pids_set:  # from now on torch reports no error when a worker ends
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False
        if self._ahead is not None:
            queue = iterator._worker_result_queue
            queue.cancel_join_thread()  # the end of this process must not wait for the next item
            queue.put((None, None))  # a thread that waits for a batch fails on this number, which torch does not know
            self._ahead.close()

        def terminate() -> None:  # all at once; torch would wait five seconds for each worker
            for worker in iterator._workers:
                worker.terminate()

        late = threading.Timer(_CLOSE_SECONDS, terminate)
        late.start()
        try:
            iterator._shutdown_workers()
        finally:
            late.cancel()
            late.join()

    @property
    def num_ready(self) -> int:
        """Number of finished batches that were not requested yet."""
        return self.buffers.num_ready // self.batch_size

    def totals(self) -> dict[str, float]:
        """Sums over all `batches` delivered so far, and `copy_seconds` over the `copies` that the device has made."""
        num_copies, seconds = self.copies.finished()
        return self._totals | {"copies": num_copies / self.sampler.num_parts, "copy_seconds": seconds}

    def pop_metrics(self) -> dict[str, float]:
        """Means over the batches delivered since the last call, by metric name; empty when there were none."""
        totals = self.totals()
        new = {name: total - self._drained.get(name, 0.0) for name, total in totals.items()}
        batches, copies, copy_seconds = new.pop("batches", 0.0), new.pop("copies"), new.pop("copy_seconds")
        if not batches:
            return {}
        self._drained = totals
        cache = {name: new.pop(f"cache_{name}", 0.0) for name in Counts()._asdict()}
        for name in FailureCounts()._asdict():
            del new[name]
        so_far = {f"loader/{name}": totals[name] for name in FailureCounts()._asdict()}
        means = {f"loader/{name}": value / batches for name, value in new.items()}
        if copies:
            means["loader/copy_seconds"] = copy_seconds / copies
        so_far["loader/skipped"] = float(len(self.bad.reasons))
        return means | _cache_metrics(cache, totals) | so_far

    def _batches(self) -> Iterator[Batch]:
        if self._ahead is not None:
            self._ahead.close()  # the last epoch may have ended early
        source = _by_step(self._sent(iter(self.loader)))
        if self.loader.num_workers == 0:
            yield from self._delivered(source)
            return
        self._ahead = ahead = BackgroundIterator(source)
        try:
            yield from self._delivered(ahead)
        finally:
            ahead.stop()

    def _delivered(self, source: Iterator[list[Sent]]) -> Iterator[Batch]:
        for parts in source:
            queue_depth = self.num_ready
            num_images = sum(len(part) for part, _ in parts)
            self.buffers.deliver(num_images)
            stats, key = LoadStats.of_parts([part.stats for part, _ in parts]), parts[0][0].key
            self.bad.add(stats.skipped, key.epoch)
            self._add(
                batches=1,
                read_seconds=stats.read_seconds,
                decode_seconds=stats.decode_seconds,
                mb_read=stats.num_bytes / 1e6,
                reads_in_flight=stats.reads_in_flight,
                queue_depth=queue_depth,
                queue_seconds=max(0.0, time.monotonic() - stats.made_at),
                **stats.failures._asdict(),
            )
            if any(stats.cache):
                self._add(**{f"cache_{name}": value for name, value in stats.cache._asdict().items()})
            lease = parts[0][0].lease
            yield self._finished(parts)
            self.buffers.release(lease)
        self.sampler.position = self.sampler.position[0] + 1, 0

    def _sent(self, batches: Iterator[Batch | RaggedBatch]) -> Iterator[Sent]:
        self.copies.use_device()
        if self.loader.num_workers > 0:
            self.copies.use_few_cpus()
        for batch in batches:
            yield self.copies.send(batch)

    def _finished(self, parts: list[Sent]) -> Batch:
        """The batch of these parts, which counts as delivered. Clears the list, to free the memory of the parts."""
        key = parts[0][0].key
        with explained(*TOO_LARGE):
            arrived = self.copies.arrived(parts)
            parts.clear()
            batch = self.finish(arrived)
        self.sampler.position = key.epoch, key.step + 1
        return batch

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._totals[name] += value


def _cache_metrics(sums: dict[str, float], totals: dict[str, float]) -> dict[str, float]:
    """Metrics of the local cache; empty without a cache. sums: fields of Counts, of these batches."""
    if not (num_samples := sums["hits"] + sums["misses"]):
        return {}
    return {
        "loader/cache_hit_percent": 100 * sums["hits"] / num_samples,
        "loader/cache_damaged": totals["cache_damaged"],
    }


def _by_step(parts: Iterator[Sent]) -> Iterator[list[Sent]]:
    """Lists of the parts of each batch. Keeps no reference to a batch after its list."""
    for first in parts:
        batch = [first, *islice(parts, first[0].key.num_parts - 1)]
        del first
        yield batch
        del batch
