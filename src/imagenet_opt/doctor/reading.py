"""The doctor's experiments that only read: first touches, requests in flight, files in memory."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from imagenet_opt.data.storage.read_ahead import FIRST
from imagenet_opt.data.storage.store import Store
from imagenet_opt.doctor.first_look import host_of, mean_sizes, setup_of
from imagenet_opt.doctor.measurements import Touches
from imagenet_opt.errors import ImagenetOptError, printable
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.first_touch import NOT_MEMORY_SECONDS, touch_twice
from imagenet_opt.measure.storage.limit import StorageLimit, storage_limit
from imagenet_opt.measure.storage.page_cache import MOSTLY, Eviction, Residency
from imagenet_opt.measure.storage.read_depths import DEPTHS, DepthReads, read_at_depths
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Rows
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span

Announce = Callable[[str], None]
"""Called with the name of the next experiment."""

_DEPTHS_CACHED = (1, 4, 16)
"""Requests in flight from memory; more threads of a Python process read no faster and take longer."""
_START_SECONDS = 1.5
"""Of an experiment, for the processes of a loader; about as much on 2 CPUs."""
EXPERIMENTS = {
    "checking the machine and the files": 0.0,
    "first and second touch of files": 1.0,
    "reading from storage, 1 to 256 requests in flight": 4.0,
    "reading files into memory": 1.0,
    "reading from memory, 1 to 16 requests in flight": 1.0,
    "decoding from memory": 5.0,
    "the loader, files in memory": 2.0,
    "the device alone": 2.0,
    "the device while the loader runs": 3.0,
    "the copy to the GPU": 1.0,
    "the full run, files in memory": 3.5,
    "the loader, files on storage": 3.0,
    "the full run, files on storage": 3.5,
}
"""Experiment -> planned time, as a share of UNITS of the budget; in the order of the examination."""
UNITS = sum(EXPERIMENTS.values())
_TOUCHING = 3.0
"""Least seconds for first touches: files behind a lazy mount take a third of a second each."""
_PATIENCE = 10.0
"""Seconds that a storage may stall before it counts as not answering."""
_WARMING = "reading files into memory"


def planned_seconds(budget_seconds: float) -> tuple[float, ...]:
    """Of each experiment with its start, if storage and computation are fast enough for the budget."""
    return tuple(_START_SECONDS + units * budget_seconds / UNITS for units in EXPERIMENTS.values())


class Reading:
    """The first look, the experiments that only read, and the results so far of all experiments by name.

    budget_seconds: for all experiments without start-up; slow storage takes longer. found: fields of `Measurements`.
    failed: experiment -> reason of its failure; the others continue.
    """

    def __init__(self, testbed: Testbed, *, budget_seconds: float, announce: Announce) -> None:
        self.testbed, self.samples = testbed, testbed.samples
        self.unit = budget_seconds / UNITS
        self.announce = announce
        self.announce("checking the machine and the files")
        self.setup, self.host = setup_of(testbed), host_of(self.samples)
        self.ceilings: dict[str, Ceiling] = {}
        self.limits: dict[str, StorageLimit] = {}
        self.curves: dict[str, tuple[tuple[float, float], ...]] = {}
        self.failed: dict[str, str] = {}
        self.found: dict[str, Any] = {"left_out": "", "unverified": "", "images_per_request": 1.0}

    def _span(self, units: float) -> Span:
        """Time limits of an experiment; a slow experiment may take the whole budget."""
        return Span(units * self.unit, longest=UNITS * self.unit)

    @contextlib.contextmanager
    def _experiment(self, name: str) -> Iterator[None]:
        """Announce an experiment; if it fails, keep the reason and continue."""
        self.announce(name)
        try:
            yield
        except (ImagenetOptError, torch.OutOfMemoryError) as error:
            self.failed[name] = printable(str(error).partition("\n")[0]).removeprefix("not measured: ")
            print(f"{name} could not be measured: {self.failed[name]}", file=sys.stderr, flush=True)

    def read(self) -> None:
        """Run the experiments."""
        is_remote = isinstance(self.samples, RemoteSamples)
        with self._experiment("first and second touch of files"):
            if not is_remote:  # a service has no files that come from elsewhere at the first touch
                self.found["touches"] = self._touch()
        with self._experiment("reading from storage, 1 to 256 requests in flight"):
            self._read_from_storage()
        with self._experiment(_WARMING):
            self.samples.warm(2 * self.unit)
            self._note_kept(self.samples.kept())
        with self._experiment("reading from memory, 1 to 16 requests in flight"):
            if not self.found["left_out"] and _WARMING not in self.failed:
                self._read_from_memory(is_remote=is_remote)
        self.found["mb_per_image"], self.found["megapixels"] = mean_sizes(self.samples.encoded)

    def _touch(self) -> Touches:
        groups = self._groups(self.samples.take(40), self.samples.storage)
        touch = touch_twice(self.samples.read, self.samples.evict, groups, seconds=max(_TOUCHING, 2 * self.unit))
        configured = self.testbed.loading.reads_in_flight
        per_worker = FIRST if configured == "auto" else int(configured)
        first, second = (float(np.median(seconds)) for seconds in (touch.first_seconds, touch.second_seconds))
        return Touches(first, second, touch.lazy, per_worker * max(1, self.setup.num_workers), touch.evidence)

    def _read_from_storage(self) -> None:
        rows = self.samples.take(min(max(64, len(self.samples.index) // 4), 20_000))
        self._note_eviction(self.samples.evict(rows))
        groups = self._groups(rows, self.samples.storage)
        self.found["images_per_request"] = sum(map(len, groups)) / len(groups)
        touches = self.found.get("touches")
        # of a lazy mount, a second touch would measure a cache instead
        again = [] if touches and touches.lazy else itertools.cycle(groups)
        curve = read_at_depths(
            self.samples.read_and_drop,
            itertools.chain(groups, again),
            DEPTHS,
            seconds=self.unit / 2,
            patience_seconds=_PATIENCE,
        )
        self._note_curve("storage_cold", "reads_in_flight", curve)

    def _read_from_memory(self, *, is_remote: bool) -> None:
        groups = itertools.cycle(self._groups(self.samples.warm_rows, self.samples.store))
        curve = read_at_depths(self.samples.read, groups, _DEPTHS_CACHED, seconds=self.unit / len(_DEPTHS_CACHED))
        latency = curve[0].latency_median
        if not is_remote and latency >= NOT_MEMORY_SECONDS:  # opening a file may wait, though its bytes are here
            self._leave_out_memory(f"a repeated read takes {1000 * latency:.0f} ms")
        else:
            self._note_curve("storage_cached", "reads_in_flight_cached", curve)

    def _note_curve(self, stage: str, name: str, curve: tuple[DepthReads, ...]) -> None:
        self.ceilings[stage] = max(curve, key=lambda reads: reads.images_per_second).ceiling
        self.curves[name] = tuple((float(reads.depth), reads.images_per_second) for reads in curve)
        if len(curve) > 1:
            self.limits[stage] = storage_limit(curve)

    def _note_kept(self, kept: Residency) -> None:
        """Note whether recently read files stay in memory; a mount without a cache keeps none."""
        if kept.share is not None and kept.share < MOSTLY:
            self._leave_out_memory(f"{kept.share:.0%} of them are there; {kept.method}")

    def _leave_out_memory(self, reason: str) -> None:
        what, where = ("files", "memory") if self.setup.cache is None else ("samples", "the local cache")
        left_out = f"so the stages with {what} in {where} are left out"
        self.found["left_out"] = f"recently read {what} do not come from {where} ({reason}), {left_out}"

    def _note_eviction(self, eviction: Eviction) -> None:
        """Keep the evidence of the first eviction that is not verified."""
        if not eviction.verified:
            self.found["unverified"] = self.found["unverified"] or eviction.evidence

    def _groups(self, rows: Rows, store: Store) -> list[Rows]:
        """The rows that each request to the store reads, batch by batch."""
        size = self.testbed.loading.batch_size
        batches = (rows[start : start + size] for start in range(0, len(rows), size))
        return [batch[group] for batch in batches for group in store.groups(batch)]
