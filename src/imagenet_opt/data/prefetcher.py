"""Copies batches to the device while the device computes."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from imagenet_opt.data.background_iterator import BackgroundIterator
from imagenet_opt.data.bad_samples import BadSamples
from imagenet_opt.data.batch import Batch, LoadStats, RaggedBatch, joined
from imagenet_opt.data.keys import BatchKeySampler
from imagenet_opt.data.loader_workers import explain_worker_death
from imagenet_opt.data.shared_buffers import SharedBufferPool
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.out_of_memory import explained

log = logging.getLogger(__name__)

Sent = tuple[Batch | RaggedBatch, torch.cuda.Event | None]
_TOO_LARGE = ("while a batch was on its way to the device", "lower data.batch_size")
_CLOSE_SECONDS = 1.0
"""For workers to end by themselves. One that waits for storage would not hear of it."""


class DevicePrefetcher:
    """Wraps a loader: pins the next batch and copies it on a side stream while the device computes with the present
    one.

    Parts of a large batch are copied as they come, and joined on the device. `finish` then makes images of the batch on
    the compute stream. On a CPU nothing is copied. copies: "ahead" works as described; "pinned" copies on the compute
    stream when a batch is requested; "pageable" does the same from ordinary memory, and the host waits. The last two
    exist for comparison. The length is that of the whole epoch, also after a resume within the epoch.

    Raises WorkerDied, with the likely cause, if a worker process is killed; OutOfMemory if the device has no room for a
    batch.
    """

    def __init__(
        self,
        loader: "DataLoader[Batch | RaggedBatch]",
        keys: BatchKeySampler,
        *,
        batch_size: int,
        device: torch.device,
        finish: Callable[[Batch | RaggedBatch], Batch],
        bad: BadSamples,
        buffers: SharedBufferPool,
        copies: str = "ahead",
    ) -> None:
        self.loader = loader
        self.sampler = keys  # Lightning looks here for set_epoch,
        self.batch_sampler = None  # and here when there is a sampler
        self.batch_size = batch_size
        self.device = device
        self.finish = finish
        self.bad = bad
        self.buffers = buffers
        self.copies = copies
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copy_clock = CudaClock() if device.type == "cuda" else None
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._drained: dict[str, float] = {}
        self._ahead: BackgroundIterator[list[Sent]] | None = None
        self._has_warned = False

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        try:
            yield from self._batches()
        except (RuntimeError, OSError, EOFError) as error:
            if (death := explain_worker_death(error)) is None:
                raise
            raise death from error
        except ImagenetOptError as error:
            if (message := _worker_message(error)) is None:
                raise
            raise type(error)(message) from error

    def close(self) -> None:
        """End the thread and the workers, even if they wait for storage. The garbage collector would wait five
        seconds for each worker, because its queue is destroyed first."""
        iterator: Any = self.loader._iterator  # of persistent workers; torch has no public name for it
        if iterator is None:
            return
        if iterator._worker_pids_set:  # from here on the end of a worker is no error
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False
        if self._ahead is not None:
            _wake(iterator)
            self._ahead.close()
        late = threading.Timer(_CLOSE_SECONDS, _terminate, args=(iterator._workers,))
        late.start()
        try:
            iterator._shutdown_workers()
        finally:
            late.cancel()
            late.join()
        self.loader._iterator = None

    @property
    def num_ready(self) -> int:
        """Number of finished batches that were not requested yet."""
        return self.buffers.num_ready // self.batch_size

    def totals(self) -> dict[str, float]:
        """Sums over all `batches` delivered so far, and `copy_seconds` of the `copies` that the device has made."""
        copies = self._copy_clock.finished_seconds() if self._copy_clock is not None else []
        self._add(copies=len(copies) / self.sampler.num_parts, copy_seconds=sum(copies))
        return dict(self._totals)

    def pop_metrics(self) -> dict[str, float]:
        """Means over the batches delivered since the last call, by metric name; empty when there were none."""
        totals = self.totals()
        new = {name: total - self._drained.get(name, 0.0) for name, total in totals.items()}
        batches, copies = new.pop("batches", 0.0), new.pop("copies")
        if not batches:
            return {}
        self._drained = totals
        if not copies:
            del new["copy_seconds"]
        means = {
            f"loader/{name}": value / (copies if name == "copy_seconds" else batches) for name, value in new.items()
        }
        return means | {"loader/skipped": float(len(self.bad.reasons))}

    def _batches(self) -> Iterator[Batch]:
        if self._ahead is not None:
            self._ahead.close()  # an epoch that was left early
        source = _by_step(self._on_device(iter(self.loader)))
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
            queued = self.num_ready
            num_images = sum(len(part) for part, _ in parts)
            self.buffers.deliver(num_images)
            stats, key = LoadStats.of_parts([part.stats for part, _ in parts]), parts[0][0].key
            self.bad.add(stats.skipped, key.epoch)
            self._note(stats, queued)
            self._warn_of_whole_decode(stats, num_images)
            lease = parts[0][0].lease
            yield self._finished(parts)
            self.buffers.release(lease)

    def _on_device(self, batches: Iterator[Batch | RaggedBatch]) -> Iterator[Sent]:
        """Batches on their way to the device, with the event that says when they are there; None on a CPU."""
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)  # a new thread begins with the machine's first GPU
        for batch in batches:
            self.buffers.keep_mapped(batch.lease, batch.data)
            if self._stream is None or self.copies == "pageable":
                yield self._kept(batch), None
            elif self.copies == "pinned":
                yield self._pin(batch), None
            else:
                yield self._send(self._pin(batch), self._stream)

    def _kept(self, part: Batch | RaggedBatch) -> Batch | RaggedBatch:
        """A whole batch as it is; a part as a copy, because the worker needs its shared memory for further parts."""
        if part.key.num_parts == 1:
            return part
        own = part.clone()
        self.buffers.release(part.lease)
        return own

    def _send(self, batch: Batch | RaggedBatch, stream: torch.cuda.Stream) -> Sent:
        assert self._copy_clock is not None
        with torch.cuda.stream(stream):
            sent = self._copy(batch, self._copy_clock)
            copied = torch.cuda.Event()
            copied.record()
        return sent, copied

    def _pin(self, batch: Batch | RaggedBatch) -> Batch | RaggedBatch:
        pinned = batch.pin_memory()
        self.buffers.release(batch.lease)
        return replace(pinned, lease=None)

    def _copy(self, batch: Batch | RaggedBatch, clock: CudaClock) -> Batch | RaggedBatch:
        clock.start()
        with explained(*_TOO_LARGE):
            sent = batch.to(self.device, non_blocking=self.copies != "pageable")
        clock.stop()
        return sent

    def _finished(self, parts: list[Sent]) -> Batch:
        """The batch of these parts, which are dropped from the list to free their memory."""
        with explained(*_TOO_LARGE):
            arrived = [self._arrived(part, copied) for part, copied in parts]
            parts.clear()
            batch = joined(arrived)
            arrived.clear()
            return self.finish(batch)

    def _arrived(self, part: Batch | RaggedBatch, copied: torch.cuda.Event | None) -> Batch | RaggedBatch:
        """The part on the device, for use by the computing stream."""
        if copied is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(copied)
            part.record_stream(computing)
        elif self._copy_clock is not None:
            return self._copy(part, self._copy_clock)
        return part

    def _note(self, stats: LoadStats, queued: int) -> None:
        self._add(
            batches=1,
            read_seconds=stats.read_seconds,
            decode_seconds=stats.decode_seconds,
            mb_read=stats.num_bytes / 1e6,
            reads_in_flight=stats.reads_in_flight,
            queue_depth=queued,
            queue_seconds=max(0.0, time.monotonic() - stats.made_at),
        )

    def _warn_of_whole_decode(self, stats: LoadStats, num_images: int) -> None:
        """Once, where region decode gives up for most images of a batch."""
        if self._has_warned or 2 * stats.num_given_up <= num_images:
            return
        self._has_warned = True
        what = f"region decode gave up for {stats.num_given_up} of the {num_images} images of a batch"
        if stats.codec_error:
            what = f"nvImageCodec cannot make a decoder here ({stats.codec_error})"
        log.warning(
            f"{what}; whole images are decoded instead, which is slower. "
            "data.region_decode=false decodes whole images without this warning"
        )

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._totals[name] += value


def _by_step(parts: Iterator[Sent]) -> Iterator[list[Sent]]:
    """The parts of each batch. Keeps no reference to a batch that it has given."""
    for first in parts:
        batch = [first, *islice(parts, first[0].key.num_parts - 1)]
        del first
        yield batch
        del batch


def _wake(iterator: Any) -> None:
    """Make a thread that waits for a batch of `iterator` fail, by sending a batch number that torch does not know.
    Ending workers would never answer, so the thread would wait forever."""
    queue = iterator._worker_result_queue
    queue.cancel_join_thread()  # the process must not wait for this item at its end
    queue.put((None, None))


def _terminate(workers: Sequence[BaseProcess]) -> None:
    """Terminate all workers at once; torch would wait five seconds for each."""
    for worker in workers:
        worker.terminate()


def _worker_message(error: ImagenetOptError) -> str | None:
    """The message of an error in a worker, without the DataLoader's traceback; None for other errors."""
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    _, separator, message = str(error).rpartition(name)
    return message.strip() if separator else None
