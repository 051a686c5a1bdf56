"""Shared memory between a training process and its recorder: numbers, and a ring buffer of events."""

import mmap
import os

import numpy as np

from imagenet_opt.measure.telemetry.timeline import Table

GAUGES = ("queue_depth", "step", "phase", "done", "recorder_cpu_seconds", "recorder_seconds", "nvml_error")
"""Names of the numbers, one float64 each. nvml_error: number of an NVML error, 0 for none."""
_SLOTS = {name: slot for slot, name in enumerate((*GAUGES, "num_events"))}
_NUM_EVENTS = 4096
_EVENT = ("begin_unix_seconds", "end_unix_seconds", "kind", "step")


class Gauges:
    """Anonymous shared memory behind the file descriptor `file`, which a child process inherits.

    Writing takes about a microsecond and never waits: an event is lost if it is not read before 4096 more events, and
    the writer does not notice a dead reader. Each gauge has one writer, and the events have one writer.

    file: descriptor of existing gauges; None creates new gauges, with depth and step NaN.
    """

    def __init__(self, file: int | None = None) -> None:
        num_bytes = 8 * (len(_SLOTS) + len(_EVENT) * _NUM_EVENTS)
        new = file is None
        self.file = os.memfd_create("imagenet-opt gauges") if file is None else file
        if new:
            os.ftruncate(self.file, num_bytes)
        memory = mmap.mmap(self.file, num_bytes)
        self._slots = memoryview(memory).cast("d")  # writing one number takes a third of numpy's time
        self._events = np.frombuffer(memory, np.float64)[len(_SLOTS) :].reshape(_NUM_EVENTS, len(_EVENT))
        self._num_read = 0
        if new:
            self["queue_depth"] = self["step"] = np.nan

    def __getitem__(self, name: str) -> float:
        return self._slots[_SLOTS[name]]

    def __setitem__(self, name: str, value: float) -> None:
        self._slots[_SLOTS[name]] = value

    def close(self) -> None:
        os.close(self.file)

    def add_event(self, kind: int, begin: float, end: float) -> None:
        """Add an event at the present step. kind: an index of timeline.KINDS; begin, end: unix seconds."""
        number = int(self["num_events"])
        self._events[number % _NUM_EVENTS] = begin, end, kind, self["step"]
        self["num_events"] = number + 1  # last, so that the reader sees complete events only

    def drain_events(self) -> Table:
        """Events since the last call, as rows for the table of events; no columns without events."""
        num_events = int(self["num_events"])
        if num_events == self._num_read:
            return {}
        first = max(self._num_read, num_events - _NUM_EVENTS)
        rows = self._events[np.arange(first, num_events) % _NUM_EVENTS]
        self._num_read = num_events
        dtypes = (np.float64, np.float64, np.uint8, np.float32)
        return {name: rows[:, i].astype(dtype) for i, (name, dtype) in enumerate(zip(_EVENT, dtypes, strict=True))}
