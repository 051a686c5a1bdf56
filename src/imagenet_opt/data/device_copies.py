"""Copies batches from the workers' memory to the device."""

import threading
from collections.abc import Iterable
from dataclasses import replace

import torch

from imagenet_opt.data.batch import Batch, RaggedBatch, joined
from imagenet_opt.data.shared_buffers import SharedBufferPool
from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from imagenet_opt.out_of_memory import explained

Part = Batch | RaggedBatch
Sent = tuple[Part, torch.cuda.Event | None]
"""A part on its way to the device, with the event of its arrival; None if no copy is under way."""

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
        self._clock = CudaClock() if device.type == "cuda" else None
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

    def send(self, part: Part) -> Sent:
        """Begin to copy a part, as far as the mode allows before the part is used."""
        self.buffers.keep_mapped(part.lease, part.data)
        if self._stream is None or self.mode == "pageable":
            return self._kept(part), None
        if self.mode == "pinned":
            return self._pin(part), None
        return self._send(self._pin(part))

    def arrived(self, parts: Iterable[Sent]) -> Part:
        """The whole batch on the device, for use by the computing stream."""
        self.finished()  # frees the events of finished copies, because nobody else may ask
        return joined([self._arrived(*sent) for sent in parts])

    def finished(self) -> tuple[int, float]:
        """Number of copies that the device has finished so far, and their seconds. To be called from one thread."""
        if self._clock is not None:
            seconds = self._clock.finished_seconds()
            self._num_finished, self._seconds = self._num_finished + len(seconds), self._seconds + sum(seconds)
        return self._num_finished, self._seconds

    def _kept(self, part: Part) -> Part:
        """Return a whole batch unchanged; copy a part, because the worker needs the shared memory for further parts."""
        if part.key.num_parts == 1:
            return part
        copy = part.clone()
        self.buffers.release(part.lease)
        return copy

    def _pin(self, part: Part) -> Part:
        pinned = part.pin_memory()
        self.buffers.release(part.lease)
        return replace(pinned, lease=None)

    def _send(self, part: Part) -> tuple[Part, torch.cuda.Event]:
        with torch.cuda.stream(self._stream):
            sent = self._copy(part)
            copied = torch.cuda.Event(blocking=True)
            copied.record()
        return sent, copied

    def _arrived(self, part: Part, copied: torch.cuda.Event | None) -> Part:
        if copied is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(copied)
            part.record_stream(computing)
        elif self._clock is not None:
            return self._copy(part)
        return part

    def _copy(self, part: Part) -> Part:
        assert self._clock is not None
        self._clock.start()
        with explained(*TOO_LARGE):
            sent = part.to(self.device, non_blocking=self.mode != "pageable")
        self._clock.stop()
        return sent
