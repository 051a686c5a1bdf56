"""A thread that samples the machine and its training process: means for loggers, and the rows of a timeline."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from imagenet_opt.measure.telemetry.gpu import GpuColumns
from imagenet_opt.measure.telemetry.proc_counters import HostColumns, Sample
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, KINDS, ChunkWriter

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 10.0
_END_SECONDS = 5.0
_MOST_EVENTS = 2**16  # that wait to be written; more wait only if the disk hangs
_EVENT = ("begin_unix_seconds", "end_unix_seconds", "kind", "step")

Totals = Mapping[str, tuple[float, float]]
"""Column -> its sum over time (value x seconds), and the seconds in which it was known."""


class Recorder:
    """Samples five times a second from its creation until `stop`. Its errors are logged and never reach the training.

    gpu_names: from `device_names` of measure/telemetry/gpu.py; None without a GPU.
    gauges: numbers that the training sets and each sample copies: queue_depth and step.
    totals: of all columns since the start; replaced at each sample, never changed, so that readers need no lock.
    """

    def __init__(self, gpu_names: tuple[str, str] | None = None) -> None:
        self.gauges: Sample = {"queue_depth": math.nan, "step": math.nan}
        self.totals: Totals = {}
        self._folder: Path | None = None
        self._writer: ChunkWriter | None = None
        self._rows: list[Sample] = []
        self._events: deque[tuple[float, ...]] = deque(maxlen=_MOST_EVENTS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(gpu_names,), name="recorder", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self._stopped.is_set()

    def write_to(self, folder: Path) -> None:
        """From now on, write samples and events into this folder of a timeline, every ten seconds and at the end."""
        self._folder = folder

    def add_event(self, kind: str, begin: float, end: float) -> None:
        """Add an event at the present step. kind: one of KINDS; begin, end: unix seconds."""
        self._events.append((begin, end, KINDS.index(kind), self.gauges["step"]))

    def stop(self) -> None:
        """Write the last samples and end. A thread that hangs, on a disk or in the GPU's driver, is abandoned."""
        self._stopped.set()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            _log.warning("timeline: the disk or the GPU's driver hangs, so the last samples are not written")

    def _run(self, gpu_names: tuple[str, str] | None) -> None:
        try:
            self._record(HostColumns(), GpuColumns(*gpu_names) if gpu_names else None)
        except Exception as error:
            _log.warning("recorder: ended, training continues (%s: %s)", type(error).__name__, error)

    def _record(self, host: HostColumns, gpu: GpuColumns | None) -> None:
        before = time.monotonic()
        flush_at, over = before + _FLUSH_SECONDS, False
        while not over:
            over = self._stopped.wait(INTERVAL_SECONDS)
            now = time.monotonic()
            row = {"unix_seconds": time.time()} | host.row() | (gpu.row() if gpu else {}) | self.gauges
            self.totals = _added(self.totals, row, now - before)
            if self._folder is not None:
                self._rows.append(row)
            if over or now >= flush_at:
                self._flush()
                flush_at = now + _FLUSH_SECONDS
            before = now

    def _flush(self) -> None:
        if self._folder is None:
            return
        events = [self._events.popleft() for _ in range(len(self._events))]
        try:
            self._writer = self._writer or ChunkWriter(self._folder)
            if self._rows:
                self._writer.add("samples", {name: [row[name] for row in self._rows] for name in self._rows[0]})
            if events:
                self._writer.add("events", dict(zip(_EVENT, zip(*events, strict=True), strict=True)))
            self._writer.flush()
        except OSError as error:
            self._folder = None
            _log.warning("timeline: no longer recorded, training continues (%s)", error)
        self._rows.clear()


def means(before: Totals, after: Totals) -> dict[str, float]:
    """Mean of each column in the time between two `totals`; a column that was not known has none."""
    found = {}
    for name, (total, seconds) in after.items():
        total_before, seconds_before = before.get(name, (0.0, 0.0))
        if seconds > seconds_before:
            found[name] = (total - total_before) / (seconds - seconds_before)
    return found


def _added(totals: Totals, row: Sample, seconds: float) -> Totals:
    added = dict(totals)
    for name, value in row.items():
        if value == value:  # not NaN
            total, known = added.get(name, (0.0, 0.0))
            added[name] = total + value * seconds, known + seconds
    return added
