"""Copies batches from the workers' memory to the device, in a thread."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace

import torch

from imagenet_opt.data.batch import AnyBatch, joined
from imagenet_opt.data.batch_memory import SharedBufferPool
from imagenet_opt.data.storage.read_pool import DaemonPool
from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.out_of_memory import explained

SentBatch = tuple[AnyBatch, torch.cuda.Event | None]
"""A part on its way to the device, with the event of its arrival; None if no copy is under way."""

_SIGNAL_SECONDS = 1.0
"""Longest single wait for a batch. A signal that arrives just before a wait is handled only after the wait."""
_COPY_THREADS = 2
"""Our choice; torch's own thread that pins takes one. Not measured beside a GPU."""
TOO_LARGE = ("while a batch was on its way to the device", "lower data.batch_size")


class DeviceCopies:
    """Copies batches to `device`. On a CPU nothing is copied. mode: see `LoaderOptions.copies`; "pinned" and "pageable"
    copy on the compute stream when a batch is requested.

    `send` runs in the thread that prepares batches, `arrived` where the batch is used. `send` raises OutOfMemory if the
    device has no room for a batch.
    """

    def __init__(self, device: torch.device, mode: str, buffers: SharedBufferPool) -> None:
        self.device = device
        self.mode = mode
        self.buffers = buffers
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._clock = CudaClock(device)
        self._num_finished, self._seconds = 0, 0.0

    def use_device(self) -> None:
        """Select the device in a new thread, which starts with the first GPU."""
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)

    def use_few_cpus(self) -> None:
        """Let copies into pinned memory from this thread take two CPUs, because the workers need the others.

        torch also gives the number to threads that have not computed yet; a short thread takes that back.
        """
        if self._stream is not None:
            number = torch.get_num_threads()
            torch.set_num_threads(_COPY_THREADS)
            restore = threading.Thread(target=torch.set_num_threads, args=(number,))
            restore.start()
            restore.join()

    def send(self, part: AnyBatch) -> SentBatch:
        """Begin to copy a part, as far as the mode allows before the part is used."""
        self.buffers.keep_mapped(part.lease, part.data)
        if self._stream is not None and self.mode != "pageable":
            pinned = replace(part.pin_memory(), lease=None)
            self.buffers.release(part.lease)
            if self.mode == "pinned":
                return pinned, None
            with torch.cuda.stream(self._stream):
                sent, copied = self._copy(pinned), torch.cuda.Event(blocking=True)
                copied.record()
            return sent, copied
        if part.key.num_parts == 1:
            return part, None
        copy = part.clone()
        self.buffers.release(part.lease)  # the worker needs the shared memory for further parts
        return copy, None

    def arrived(self, parts: Iterable[SentBatch]) -> AnyBatch:
        """The whole batch on the device, for use by the computing stream."""
        self.finished()  # frees the events of finished copies, because nobody else may ask
        return joined([self._arrived(*sent) for sent in parts])

    def finished(self) -> tuple[int, float]:
        """Number of copies that the device has finished so far, and their seconds. To be called from one thread."""
        seconds = self._clock.finished_seconds()
        self._num_finished, self._seconds = self._num_finished + len(seconds), self._seconds + sum(seconds)
        return self._num_finished, self._seconds

    def _arrived(self, part: AnyBatch, copied: torch.cuda.Event | None) -> AnyBatch:
        if copied is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(copied)
            part.record_stream(computing)
        elif self._stream is not None:
            return self._copy(part)
        return part

    def _copy(self, part: AnyBatch) -> AnyBatch:
        self._clock.start()
        with explained(*TOO_LARGE):
            sent = part.to(self.device, non_blocking=self.mode != "pageable")
        self._clock.stop()
        return sent


class BackgroundIterator(Iterator[list[SentBatch]]):
    """Iterates over `source`, one item ahead: when an item is taken, a thread starts to make the next item.

    An error of `source` is raised instead of its item. A source that hangs does not delay the end of the process.
    """

    def __init__(self, source: Iterator[list[SentBatch]]) -> None:
        self._source, self._thread = source, DaemonPool(1)
        self._next: Future[list[SentBatch]] = self._thread.submit(next, source)

    def __next__(self) -> list[SentBatch]:
        while not self._next.done():
            wait([self._next], _SIGNAL_SECONDS)
        item = self._next.result()
        self._next = self._thread.submit(next, self._source)
        return item

    def stop(self) -> None:
        """Free the item ahead, and make no further item. Does not wait for the thread."""
        self._source = iter(())
        self._next.cancel()
        self._next = self._thread.submit(next, self._source)

    def close(self) -> None:
        """Stop, and wait for the thread. `source` may be used elsewhere afterwards."""
        self.stop()
        wait([self._next])
