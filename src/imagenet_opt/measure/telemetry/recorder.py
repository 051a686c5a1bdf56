"""A thread that samples the machine and its training process: means for loggers, and the rows of a timeline."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from imagenet_opt.errors import printable
from imagenet_opt.measure.telemetry.gpu import GpuColumns
from imagenet_opt.measure.telemetry.proc_counters import HostColumns, Row
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, KINDS, ChunkWriter, Table

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 10.0
_END_SECONDS = 5.0
_MOST_EVENTS = 2**16  # that wait to be written; more wait only if the disk hangs
_EVENT = {
    "begin_unix_seconds": np.float64,
    "end_unix_seconds": np.float64,
    "kind": np.uint8,
    "step": np.float32,
}

Totals = Mapping[str, tuple[float, float]]
"""Column -> its sum over time (value x seconds), and the seconds in which it was known."""


class Recorder:
    """Samples five times a second from its creation until `stop`. Its errors are logged and never reach the training.

    gpu_names: from `device_names` of measure/telemetry/gpu.py; None without a GPU.
    gauges: numbers that the training sets and each sample copies: queue_depth, step, phase (an index of KINDS).
    totals: of all columns since the start; replaced at each sample, never changed, so that readers need no lock.
    seconds, cpu_seconds: of the thread, until its last sample.
    """

    def __init__(self, gpu_names: tuple[str, str] | None = None) -> None:
        self.gauges: Row = {"queue_depth": math.nan, "step": math.nan, "phase": float(KINDS.index("other"))}
        self.totals: Totals = {}
        self.seconds = self.cpu_seconds = 0.0
        self._folder: Path | None = None
        self._writer: ChunkWriter | None = None
        self._rows: list[Row] = []
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
            host, gpu = HostColumns(), GpuColumns(*gpu_names) if gpu_names else None
            self._record(host, gpu)
        except Exception as error:
            _log.warning("recorder: ended, training continues (%s: %s)", type(error).__name__, error)

    def _record(self, host: HostColumns, gpu: GpuColumns | None) -> None:
        began = before = due = time.monotonic()
        flush_at, over = began + _FLUSH_SECONDS, False
        while not over:
            due = next_due(due, time.monotonic(), INTERVAL_SECONDS)
            over = self._stopped.wait(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            row = {"unix_seconds": time.time()} | host.row() | (gpu.row() if gpu else {}) | self.gauges
            self.totals = _added(self.totals, row, now - before)
            if self._folder is not None:
                self._rows.append(row)
            if over or now >= flush_at:
                self._flush()
                flush_at = now + _FLUSH_SECONDS
            before, self.seconds, self.cpu_seconds = now, now - began, time.thread_time()

    def _flush(self) -> None:
        if self._folder is None:
            return
        events = [self._events.popleft() for _ in range(len(self._events))]
        try:
            self._writer = self._writer or ChunkWriter(self._folder)
            if self._rows:
                self._writer.add("samples", _samples(self._rows))
            if events:
                columns = zip(_EVENT.items(), zip(*events, strict=True), strict=True)
                self._writer.add("events", {name: np.array(column, kind) for (name, kind), column in columns})
            self._writer.flush()
        except OSError as error:
            self._folder = None
            _log.warning("timeline: no longer recorded, training continues (%s)", printable(f"{error}"))
        self._rows.clear()


def means(before: Totals, after: Totals) -> dict[str, float]:
    """Mean of each column in the time between two `totals`; a column that was not known has none."""
    found = {}
    for name, (total, seconds) in after.items():
        total_before, seconds_before = before.get(name, (0.0, 0.0))
        if seconds > seconds_before:
            found[name] = (total - total_before) / (seconds - seconds_before)
    return found


def next_due(due: float, now: float, interval: float) -> float:
    """The first time after `now` on the schedule through `due`; missed times are skipped."""
    return due + interval * (1 + max(0.0, (now - due) // interval))


def _added(totals: Totals, row: Row, seconds: float) -> Totals:
    added = dict(totals)
    for name, value in row.items():
        if value == value:  # not NaN
            total, known = added.get(name, (0.0, 0.0))
            added[name] = total + value * seconds, known + seconds
    return added


def _samples(rows: list[Row]) -> Table:
    return {
        name: np.array([row[name] for row in rows], np.float64 if name == "unix_seconds" else np.float32)
        for name in rows[0]
    }
