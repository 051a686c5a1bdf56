"""The report of a run that trains, built when asked for, and at most as often as its cost allows."""

import threading
import time
from pathlib import Path

from imagenet_opt.report.page import Live, render
from imagenet_opt.report.run_files import read_record
from imagenet_opt.watch.numbers import facts
from imagenet_opt.watch.run_folder import read_snapshot, version

EVERY_SECONDS = 5.0
MOST_SHARE = 0.05
"""Largest share of one CPU for building the page: reading a long timeline takes seconds."""
PLOTLY = "plotly.js"
"""Address of plotly's JavaScript beside the page; a browser keeps it over reloads."""


class LivePage:
    """The page of the run in `folder`. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._page = b""
        self._version = ""
        self._next_build = 0.0  # by time.monotonic()

    def version(self) -> str:
        """The version of the page that `page` would return now."""
        with self._lock:
            return self._version if time.monotonic() < self._next_build else version(self._folder)

    def page(self) -> bytes:
        """The page, built again if the files changed and the last build is long enough ago."""
        with self._lock:
            now = version(self._folder)
            if now != self._version and time.monotonic() >= self._next_build:
                began = time.thread_time()
                self._page, self._version = self._build(now), now
                cpu_seconds = time.thread_time() - began
                self._next_build = time.monotonic() + max(EVERY_SECONDS, cpu_seconds / MOST_SHARE)
            return self._page

    def _build(self, now: str) -> bytes:
        snapshot = read_snapshot(self._folder)
        state = snapshot.ending or "The run trains; this page follows it."
        live = Live(now, PLOTLY, state, facts(snapshot))
        return render(read_record(self._folder), live=live).encode(errors="backslashreplace")
