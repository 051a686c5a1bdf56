"""Decides how many requests to a storage are in flight."""

import math
from collections import deque

import numpy as np

QUICK_SECONDS = 1e-3
"""Requests with a lower latency are made one after the other, because threads would cost more time than they save."""
FIRST = 32
"""Requests in flight until the latency is known; further requests are added in steps."""
_LEAST, _MOST = 4, 512
_SPARE = 1.5
"""Requests in flight, as a multiple of the requests that become due during one answer."""
_PACES = 9
"""Batches over which the median of the pace is taken, so that a pause of training (validation, a save) is ignored."""
_SAME_GROWTH = 0.75
"""Requests wait in a queue of the storage if the latency grows with this power of their number, or more."""
_PATIENCE = 20
"""An undone step is tried again after this number of answers, as a multiple of the requests in flight."""


class ReadConcurrency:
    """Number of requests in flight: 1.5 times the requests that become due during one answer (Little's law).

    If bandwidth is the limit, further requests only raise the latency, and the number would grow without end. So beyond
    `FIRST` the number doubles in steps, and a step is undone if the latency grew in proportion.
    """

    def __init__(self) -> None:
        self.now = FIRST
        self._limit = FIRST
        self._before: tuple[int, float] | None = None  # requests and latency before the last step up
        self._unsure = 0  # answers until the latency is measured with `_limit`
        self._paces: deque[float] = deque(maxlen=_PACES)

    def reset(self) -> None:
        """Note that a fast storage has become slow."""
        self.now = max(self.now, FIRST)

    def update(self, *, latency: float, pace: float | None, most: float, answers: int) -> None:
        """Call for each batch. latency: median seconds of an answer. pace: seconds between the starts of two requests,
        without waits; None if unknown. most: requests that fit into memory. answers: their number since the last call.
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
        """Raise the limit, or undo the last step if the latency grew in proportion."""
        if self._before is not None:
            requests, seconds = self._before
            if latency > seconds * (self._limit / requests) ** _SAME_GROWTH:
                self._before, self._limit, self._unsure = None, requests, _PATIENCE * requests
                return
        self._before = (self._limit, latency)
        self._limit = min(2 * self._limit, _MOST)
        self._unsure = 3 * self._limit  # requests that were made earlier are answered first
