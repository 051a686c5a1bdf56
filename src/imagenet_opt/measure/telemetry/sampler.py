"""A daemon thread that takes readings during training, and the means of the readings."""

import logging
import threading
from collections.abc import Generator, Mapping
from time import monotonic

from imagenet_opt.errors import ConfigError

_log = logging.getLogger(__name__)

Reading = Mapping[str, float | None]
Readings = Generator[Reading, None, None]
_Totals = Mapping[str, tuple[float, int]]


class Sampler:
    """Means of a source's readings, under the keys `<name>/<key of the reading>`.

    The source is a generator. The thread opens, reads and closes it, so errors never reach training: the first error is
    stored in `error`, logged as a warning, and ends the sampling. A None in a reading is ignored. The first reading
    only starts the source's clocks and does not count.

    Raises ConfigError for an interval that is not above 0.
    """

    def __init__(self, name: str, *, interval_seconds: float) -> None:
        if interval_seconds <= 0:
            key = f"callbacks.{name}_utilization.interval_seconds"
            raise ConfigError(f"interval_seconds is {interval_seconds} ({key}); expected a number of seconds above 0.")
        self.error: Exception | None = None
        self._name, self._interval_seconds = name, interval_seconds
        # The list is never changed in place, only replaced, so thread and caller need no lock.
        self._totals: _Totals = {}
        self._drained: _Totals = {}
        self._running: tuple[threading.Thread, threading.Event] | None = None

    def clear(self) -> None:
        """End the sampling and discard all samples."""
        self.stop()
        self.error, self._totals, self._drained = None, {}, {}

    def start(self, readings: Readings) -> None:
        """Discard earlier samples and start sampling."""
        self.clear()
        stopped = threading.Event()
        name = f"{self._name}-sampler"
        thread = threading.Thread(target=self._sample, args=(readings, stopped), name=name, daemon=True)
        self._running = thread, stopped
        thread.start()

    def pop_metrics(self) -> dict[str, float]:
        """Means since the last call; empty without a reading since then."""
        before, self._drained = self._drained, self._totals
        return _means(self._drained, before)

    def means(self) -> dict[str, float]:
        """Means since the start; empty without samples."""
        return _means(self._totals, {})

    def stop(self) -> None:
        """End the thread, if it runs; its means stay."""
        if self._running is not None:
            thread, stopped = self._running
            stopped.set()
            thread.join(timeout=5)  # a hanging driver call must not delay the end of a run
            self._running = None

    def _sample(self, readings: Readings, stopped: threading.Event) -> None:
        try:
            next(readings)
            due = monotonic() + self._interval_seconds
            while not stopped.wait(max(0.0, due - monotonic())):
                self._count(next(readings))
                due = next_due(due, monotonic(), self._interval_seconds)
            readings.close()
        except Exception as error:
            self.error = error
            _log.warning("%s sampling ended, training continues: %s: %s", self._name, type(error).__name__, error)

    def _count(self, reading: Reading) -> None:
        totals = dict(self._totals)
        for name, value in reading.items():
            if value is not None:
                key = f"{self._name}/{name}"
                total, count = totals.get(key, (0.0, 0))
                totals[key] = total + value, count + 1
        self._totals = totals


def next_due(due: float, now: float, interval: float) -> float:
    """The first time after `now` on the schedule through `due`; missed times are skipped."""
    return due + interval * (1 + max(0.0, (now - due) // interval))


def _means(totals: _Totals, before: _Totals) -> dict[str, float]:
    means = {}
    for key, (total, count) in totals.items():
        total_before, count_before = before.get(key, (0.0, 0))
        if count > count_before:
            means[key] = (total - total_before) / (count - count_before)
    return means
