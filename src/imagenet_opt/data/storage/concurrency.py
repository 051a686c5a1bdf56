"""Decides how many simultaneous requests a storage deserves."""

import math
from collections import deque

import numpy as np

QUICK_SECONDS = 1e-3
"""Requests that are answered sooner are made one after the other: threads would cost more than they hide."""
FIRST = 32
"""Requests in flight until the latency is known, and from which more are tried."""
_LEAST, _MOST = 4, 512
_SPARE = 1.5
"""Requests in flight over those that come due while one is answered."""
_PACES = 9
"""Batches whose median pace counts: a pause of training (validation, a save) is no pace."""
_SAME_GROWTH = 0.75
"""Latency that grows with this power of the number of requests, or more, is that of a queue."""
_PATIENCE = 20
"""Latencies for which more requests are not tried again."""


class ReadConcurrency:
    """Number of requests in flight: as many as become due during one answer (Little's law), and a half more.

    If bandwidth is the limit, more requests only wait longer, and with that latency their number would grow without
    end. So beyond `FIRST` the number doubles in steps, and a step is undone if the latency grew in proportion.
    """

    def __init__(self) -> None:
        self.now = FIRST
        self._limit = FIRST
        self._before: tuple[int, float] | None = None  # requests and latency before the last step up
        self._unsure = 0  # answers until the latency is that of `_limit`
        self._paces: deque[float] = deque(maxlen=_PACES)

    def reset(self) -> None:
        """Note that a fast storage has become slow."""
        self.now = max(self.now, FIRST)

    def update(self, *, latency: float, pace: float | None, most: float, answers: int) -> None:
        """Call for each batch. latency: median seconds of an answer. pace: seconds between the starts of two
        requests, without waits; None if unknown. most: number of requests that there is room for. answers: since the
        last call.
        """
        self._unsure -= answers
        if pace is not None:
            self._paces.append(pace)
        if latency < QUICK_SECONDS:
            self.now = 1
            return
        usual = float(np.median(self._paces)) if self._paces else 2e-3
        wanted = max(_LEAST, min(math.ceil(_SPARE * latency / max(usual, 1e-6)), int(most), _MOST))
        if wanted <= self._limit:
            self._before = None
        elif self.now < self._limit:
            self._unsure = max(self._unsure, self._limit)
        elif self._unsure <= 0:
            self._step(latency)
        self.now = min(wanted, self._limit)

    def _step(self, latency: float) -> None:
        """Go up, or back if the last step up brought nothing."""
        if self._before is not None:
            requests, seconds = self._before
            if latency > seconds * (self._limit / requests) ** _SAME_GROWTH:
                self._before, self._limit, self._unsure = None, requests, _PATIENCE * requests
                return
        self._before = (self._limit, latency)
        self._limit = min(2 * self._limit, _MOST)
        self._unsure = 3 * self._limit  # those that were asked for before come first
