"""The doctor's experiments that only read: first touches, requests in flight, files in memory."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from imagenet_opt.data.storage.concurrency import FIRST
from imagenet_opt.data.storage.store import Store
from imagenet_opt.doctor.facts import Facts
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
    "the types of convolutions": 0.0,
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
    """The experiments that only read, and the results of all experiments by name.

    budget_seconds: for all experiments without start-up; slow storage takes longer. limits: of the reads of a stage,
    "storage_cold" or "storage_cached". failed: experiment -> reason of its failure; the others continue.
    """

    def __init__(self, testbed: Testbed, *, budget_seconds: float, announce: Announce) -> None:
        self.testbed, self.samples = testbed, testbed.samples
        self.unit = budget_seconds / UNITS
        self.announce = announce
        self.ceilings: dict[str, Ceiling] = {}
        self.curves: dict[str, tuple[tuple[float, float], ...]] = {}
        self.facts: Facts
        self.failed: dict[str, str] = {}
        self.limits: dict[str, StorageLimit] = {}
        self.remote = self.samples if isinstance(self.samples, RemoteSamples) else None

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
        """Run the experiments; they fill `ceilings`, `curves` and `facts`."""
        with self._experiment("first and second touch of files"):
            if self.remote is None:  # a service has no files that come from elsewhere at the first touch
                self._touch()
        with self._experiment("reading from storage, 1 to 256 requests in flight"):
            self._read_from_storage()
        with self._experiment(_WARMING):
            self.samples.warm(2 * self.unit)
            self._note_kept(self.samples.kept())
        with self._experiment("reading from memory, 1 to 16 requests in flight"):
            if self.facts.kept_in_memory is not False and _WARMING not in self.failed:
                self._read_from_memory()

    def _touch(self) -> None:
        facts, groups = self.facts, list(self._groups(self.samples.take(40), self.samples.storage))
        facts.images_per_request = sum(map(len, groups)) / len(groups)
        touch = touch_twice(self.samples.read, self.samples.evict, groups, seconds=max(_TOUCHING, 2 * self.unit))
        facts.first_touch_seconds = float(np.median(touch.first_seconds))
        facts.second_touch_seconds = float(np.median(touch.second_seconds))
        facts.first_touch_evidence, facts.lazy = touch.evidence, touch.lazy
        configured = self.testbed.loading.reads_in_flight
        per_worker = FIRST if configured == "auto" else int(configured)
        facts.first_requests_in_flight = per_worker * max(1, self.testbed.num_workers)

    def _read_from_storage(self) -> None:
        rows = self.samples.take(min(max(64, len(self.samples.index) // 4), 20_000))
        self._note_eviction(self.samples.evict(rows))
        groups = list(self._groups(rows, self.samples.storage))
        self.facts.images_per_request = sum(map(len, groups)) / len(groups)
        again = [] if self.facts.lazy else itertools.cycle(groups)  # a second touch would measure a cache instead
        curve = read_at_depths(
            self.samples.read_and_drop,
            itertools.chain(groups, again),
            DEPTHS,
            seconds=self.unit / 2,
            patience_seconds=_PATIENCE,
        )
        self._note_curve("storage_cold", "reads_in_flight", curve)
        self.facts.storage_latency_seconds = curve[0].latency_median
        if "storage_cold" in self.limits:
            self.facts.storage_evidence = self.limits["storage_cold"].evidence

    def _read_from_memory(self) -> None:
        groups = itertools.cycle(self._groups(self.samples.warm_rows, self.samples.store))
        curve = read_at_depths(self.samples.read, groups, _DEPTHS_CACHED, seconds=self.unit / len(_DEPTHS_CACHED))
        latency = curve[0].latency_median
        if self.remote is None and latency >= NOT_MEMORY_SECONDS:  # opening a file may wait, though its bytes are here
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
        elif kept.share is not None:
            self.facts.kept_in_memory = True

    def _leave_out_memory(self, reason: str) -> None:
        what, where = ("files", "memory") if self.remote is None else ("samples", "the local cache")
        self.facts.kept_in_memory = False
        self.facts.memory_evidence = (
            f"recently read {what} do not come from {where} ({reason}), so the stages with {what} in {where} are left "
            "out"
        )

    def _note_eviction(self, eviction: Eviction) -> None:
        """Keep the evidence of the first eviction that is not verified."""
        if self.facts.cold_verified is not False:
            self.facts.cold_verified, self.facts.cold_evidence = eviction.verified, eviction.evidence

    def _groups(self, rows: Rows, store: Store) -> Iterator[Rows]:
        """The rows that each request to the store reads, batch by batch."""
        size = self.testbed.loading.batch_size
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            for group in store.groups(batch):
                yield batch[group]
