"""Runs all experiments of the doctor in order, and makes their evidence."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from imagenet_opt import machine
from imagenet_opt.data.order import LEAST_BLOCK
from imagenet_opt.data.storage.read_ahead import FIRST
from imagenet_opt.data.storage.store import Store
from imagenet_opt.display.terminal_table import now
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import hardware_of, host_of, setup_of
from imagenet_opt.doctor.first_touch import NOT_MEMORY_SECONDS, touch_twice
from imagenet_opt.doctor.pack_forecast import forecast
from imagenet_opt.errors import ConfigError, ImagenetOptError, printable
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, Ceiling
from imagenet_opt.measure.storage.page_cache import MOSTLY, Eviction
from imagenet_opt.measure.storage.read_depths import DEPTHS, DepthReads, read_at_depths
from imagenet_opt.measure.telemetry.proc_counters import Neighbours
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION
from imagenet_opt.pack.image import PRESETS, preset_for
from imagenet_opt.probe.fit_timer import FitTiming
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Rows
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, fit_ceiling

_DEPTHS_CACHED = (1, 4, 16)
"""Requests in flight from memory; more threads of a Python process read no faster and take longer."""
_START_SECONDS = 1.5  # of an experiment, for the processes of a loader; about as much on 2 CPUs
_TOUCHING = 3.0  # least seconds for first touches: files behind a lazy mount take a third of a second each
_PATIENCE = 10.0  # seconds that a storage may stall before it counts as not answering
_LEAST_LONGEST = 60.0  # seconds that an experiment may take, with any budget, if it has too few batches for a rate
_LEAST_BATCH = 8  # least number of images in a batch from slow storage
_NUM_WAITS = 3  # places of waits for the GPU that are named


class Examination:
    """All experiments on a testbed.

    budget_seconds: for all experiments without start-up; slow storage takes longer. announce: called with the name of
    each experiment. found: fields of `Evidence`. in_run: such fields of each full run. kernel_seconds: of a step; None
    if not observed. failed: experiment -> reason of its failure; the others continue.
    """

    def __init__(self, testbed: Testbed, *, budget_seconds: float, announce: Callable[[str], None]) -> None:
        self.testbed, self.samples, self.announce = testbed, testbed.samples, announce
        self.unit = budget_seconds / UNITS
        self.announce("checking the machine and the files")
        self.setup, self.host = setup_of(testbed), host_of(self.samples)
        self.ceilings: dict[str, Ceiling] = {}
        self.curves: dict[str, tuple[tuple[float, float], ...]] = {}
        self.failed: dict[str, str] = {}
        self.found: dict[str, Any] = {"left_out": "", "unverified": ""}
        self.in_run: dict[str, dict[str, Any]] = {}
        self.kernel_seconds: float | None = None

    def evidence(self, *, command: str) -> Evidence:
        """Run all experiments: first stages that read from memory, then stages that empty the page cache.

        Raises ImagenetOptError if nothing can be read or the network cannot be built.
        """
        neighbours = Neighbours()
        for name, (units, measure) in EXPERIMENTS.items():
            self.announce(name)
            try:
                measure(self, Span(units * self.unit, longest=max(_LEAST_LONGEST, UNITS * self.unit)))
            except (ImagenetOptError, torch.OutOfMemoryError) as error:
                self.failed[name] = printable(str(error).partition("\n")[0]).removeprefix("not measured: ")
                print(f"{name} could not be measured: {self.failed[name]}", file=sys.stderr, flush=True)
        testbed = self.testbed
        evidence = Evidence(
            batch_size=testbed.loading.batch_size,
            simulated=None if testbed.simulated is None else testbed.simulated.name,
            setup=self.setup,
            host=self.host,
            mb_per_image=float(np.mean([len(image) for image in self.samples.encoded])) / 1e6,
            ceilings=self.ceilings,
            curves=self.curves,
            others_cpus=neighbours.stop(),
            failed=self.failed,
            machine=hardware_of(testbed),
            versions=machine.versions(),
            config=OmegaConf.to_container(testbed.config, resolve=False),  # type: ignore[arg-type]
            command=command,
            date=now(),
            **self.found,
        )
        return replace(evidence, **self.in_run.get(evidence.stage("full"), {}))

    def touch(self, span: Span) -> None:
        if isinstance(self.samples, RemoteSamples):
            return  # a service has no files that come from elsewhere at the first touch
        groups = self._groups(self.samples.take(40), self.samples.storage)
        configured = self.testbed.loading.reads_in_flight
        per_worker = FIRST if configured == "auto" else int(configured)
        self.found["touches"] = touch_twice(
            self.samples.read,
            self.samples.evict,
            groups,
            in_flight=per_worker * max(1, self.setup.num_workers),
            seconds=max(_TOUCHING, 2 * span.seconds),
        )

    def read_from_storage(self, span: Span) -> None:
        rows = self.samples.take(min(max(2 * DEPTHS[-1], len(self.samples.index) // 4), 20_000))
        self._note_eviction(self.samples.evict(rows))
        groups = self._groups(rows, self.samples.storage)
        self.found["images_per_request"] = sum(map(len, groups)) / len(groups)
        touches = self.found.get("touches")
        # of a lazy mount, a second touch would measure a cache instead
        again = itertools.chain(groups, [] if touches and touches.lazy else itertools.cycle(groups))
        read, seconds = self.samples.read_and_drop, span.seconds / 8
        # of two requests in flight for the same file, the second would find it in the page cache
        depths = [depth for depth in DEPTHS if depth < len(groups)] or DEPTHS[:1]
        curve = read_at_depths(read, again, depths, seconds=seconds, patience_seconds=_PATIENCE)
        self.ceilings["storage_cold"] = _fastest(curve)
        self.curves["reads_in_flight"] = tuple((float(reads.depth), reads.images_per_second) for reads in curve)

    def warm(self, span: Span) -> None:
        self.samples.warm(2 * span.seconds)
        kept = self.samples.kept()
        if kept.share is not None and kept.share < MOSTLY:  # a mount without a cache keeps none
            self._leave_out_memory(f"{kept.share:.0%} of them are there; {kept.method}")

    def read_from_memory(self, span: Span) -> None:
        if self.found["left_out"] or not len(self.samples.warm_rows):
            return
        groups = itertools.cycle(self._groups(self.samples.warm_rows, self.samples.store))
        seconds = span.seconds / len(_DEPTHS_CACHED)
        curve = read_at_depths(self.samples.read, groups, _DEPTHS_CACHED, seconds=seconds, patience_seconds=_PATIENCE)
        latency = curve[0].latency_median  # opening may wait, though the bytes are here
        if self.setup.cache_room is None and latency >= NOT_MEMORY_SECONDS:
            self._leave_out_memory(f"a repeated read takes {1000 * latency:.0f} ms")
        else:
            self.ceilings["storage_cached"] = _fastest(curve)

    def _leave_out_memory(self, reason: str) -> None:
        what, where = ("files", "memory") if self.setup.cache_room is None else ("samples", "the local cache")
        self.found["left_out"] = f"recently read {what} do not come from {where} ({reason}): such stages are left out"

    def _note_eviction(self, eviction: Eviction) -> None:
        self.found["unverified"] = self.found["unverified"] or ("" if eviction.verified else eviction.evidence)

    def _groups(self, rows: Rows, store: Store) -> list[Rows]:
        """The rows that each request to the store reads, batch by batch."""
        size = self.testbed.loading.batch_size
        batches = (rows[start : start + size] for start in range(0, len(rows), size))
        return [batch[group] for batch in batches for group in store.groups(batch)]

    def decode(self, span: Span) -> None:
        testbed, workers, usable = self.testbed, self.setup.num_workers, self.setup.usable_cpus
        part = replace(span, seconds=span.seconds / 3)
        one = testbed.decode(part, num_workers=1)
        configured = testbed.decode(part) if workers != 1 else one
        self.ceilings |= {"decode_one": one, "decode_all": configured}
        rates = [one, configured, *([testbed.decode(part, num_workers=usable)] if workers < usable else [])]
        # the workers that ran: memory may have no room for as many as there are CPUs
        points = {rate.facts["num_workers"]: rate.images_per_second for rate in rates}
        self.curves["workers"] = tuple(sorted(points.items()))
        width = preset_for(testbed.loading.image_size)
        if not self.setup.packed:
            self.found["pack"] = forecast(testbed, f"for={width}", PRESETS[width])

    def load_from_memory(self, span: Span) -> None:
        if not self.found["left_out"]:
            index = self.samples.listed(self.samples.warm_rows)
            self.ceilings["loader_warm"] = self.testbed.load(index, span, cold=False)

    def load_from_storage(self, span: Span) -> None:
        index = self.samples.listed(self._cold_rows())
        loader = self.testbed.load(index, span, cold=True, batch_size=self.batch_in(span))
        facts = dict(loader.facts)
        if self.setup.cache_room is not None:
            num_batches = (len(loader.windows) + SKIPPED_ROUNDS_COLD) * max(1.0, facts["num_workers"])
            num_read = facts["batch_size"] * num_batches
            facts["requests"] = num_read / self.found.get("images_per_request", 1.0) + facts["retries"]
        self.ceilings["loader_cold"] = replace(loader, facts=facts)

    def batch_in(self, span: Span) -> int:
        """Images per batch: as configured, or fewer if the storage is too slow to deliver enough of them in time."""
        configured, reads = int(self.testbed.loading.batch_size), self.ceilings.get("storage_cold")
        if reads is None:
            return configured
        num_batches = (1 + SKIPPED_ROUNDS_COLD + LEAST_ROUNDS) * self.testbed.batches_per_round
        fitting = int(reads.images_per_second * span.limit / num_batches)
        if self.testbed.loading.shuffle == "block":
            fitting -= fitting % LEAST_BLOCK
        return max(min(_LEAST_BATCH, configured), min(configured, fitting))

    def _cold_rows(self) -> Rows:
        rows, eviction = self.samples.cold()
        self._note_eviction(eviction)
        return rows

    def compute(self, span: Span) -> None:
        on_gpu = self.testbed.device.type == "cuda"
        alone = self.testbed.compute(span, beside=False)
        self.kernel_seconds = alone.kernel_seconds
        if on_gpu and alone.kernel_seconds is None:
            self.found["no_kernels"] = f"the profiler recorded no kernel; {PERMISSION}"
        ceiling = fit_ceiling(self._with_kernels(alone))
        needed = main_cpu_seconds(alone, spins=on_gpu)
        facts = {**ceiling.facts, "main_cpu_seconds": needed, "main_slowdown": alone.main_slowdown}
        self.ceilings["gpu"] = replace(ceiling, facts=facts)
        self.found["gpu"] = alone.gpu_state

    def compute_beside_loader(self, span: Span) -> None:
        beside = self.testbed.compute(span, beside=True, from_files=not self.found["left_out"])
        self.ceilings["gpu_beside_loader"] = fit_ceiling(beside, in_bursts=True)
        self.found["gpu"] = beside.gpu_state or self.found.get("gpu")  # the GPU is warm by now
        if beside.copy_seconds:
            self.ceilings["copy_overlapped"] = Ceiling((self.testbed.loading.batch_size / beside.copy_seconds,))

    def copy(self, span: Span) -> None:
        if (copy := self.testbed.copy(span)) is not None:
            self.ceilings["copy"] = copy

    def _with_kernels(self, timing: FitTiming) -> FitTiming:
        """The time of the kernels, if observed, as the device's: CUDA events also count gaps between kernels."""
        return timing if self.kernel_seconds is None else replace(timing, device_seconds=self.kernel_seconds)

    def train_from_memory(self, span: Span) -> None:
        if not self.found["left_out"]:
            self._train("warm", self.samples.warm_rows, span)

    def train_from_storage(self, span: Span) -> None:
        """Raise ConfigError if the loader is too slow to give enough batches in time."""
        num_batches, size = (1 + LEAST_ROUNDS) * self.testbed.batches_per_round, self.testbed.loading.batch_size
        loader = self.ceilings.get("loader_cold")
        if loader and (needed := num_batches * size / loader.images_per_second) > span.last:
            raise ConfigError(
                f"not measured: storage too slow for the budget ({num_batches} batches of {size} images take "
                f"{needed:.0f} s); raise --budget to {needed:.0f}s"
            )
        self._train("cold", self._cold_rows(), span)

    def _train(self, state: str, rows: Rows, span: Span) -> None:
        timing = self._with_kernels(self.testbed.train(self.samples.listed(rows), span, cold=state == "cold"))
        multiple = self.testbed.batches_per_round
        self.ceilings[f"full_{state}"] = fit_ceiling(timing, multiple=multiple, in_bursts=True)
        self.in_run[f"full_{state}"] = {
            "phases": timing.phases,
            "step_seconds": tuple(timing.step_seconds),
            "waits_per_step": sum(timing.waits.values()) / max(1, timing.num_ordinary),
            "waits": tuple(place for place, _ in timing.waits.most_common(_NUM_WAITS)),
        }


def _fastest(curve: tuple[DepthReads, ...]) -> Ceiling:
    return max(curve, key=lambda reads: reads.images_per_second).ceiling


def main_cpu_seconds(alone: FitTiming, *, spins: bool) -> float:
    """CPU time that the training process needs for a step. spins: whether waits for the device take CPU time, as CUDA's
    do by default (cudaDeviceScheduleAuto); they are left out, since a busy CPU would end them."""
    if not spins or not alone.launch_seconds:
        return alone.cpu_seconds
    beside = (seconds for name, seconds in alone.phases.items() if name not in ("step", "device", "fetch"))
    return min(alone.cpu_seconds, float(np.median(alone.launch_seconds)) + sum(beside))


EXPERIMENTS: dict[str, tuple[float, Callable[[Examination, Span], None]]] = {
    "first and second touch of files": (1.0, Examination.touch),
    "reading from storage, 1 to 256 requests in flight": (4.0, Examination.read_from_storage),
    "reading files into memory": (1.0, Examination.warm),
    "reading from memory, 1 to 16 requests in flight": (1.0, Examination.read_from_memory),
    "decoding from memory": (5.0, Examination.decode),
    "the loader, files in memory": (2.0, Examination.load_from_memory),
    "the device alone": (2.0, Examination.compute),
    "the device while the loader runs": (3.0, Examination.compute_beside_loader),
    "the copy to the GPU": (1.0, Examination.copy),
    "the full run, files in memory": (3.5, Examination.train_from_memory),
    "the loader, files on storage": (3.0, Examination.load_from_storage),
    "the full run, files on storage": (3.5, Examination.train_from_storage),
}
"""In order: experiment -> planned time, as a share of UNITS of the budget, and its method."""
UNITS = sum(units for units, _ in EXPERIMENTS.values())


def planned_seconds(budget_seconds: float) -> tuple[float, ...]:
    """Of the checks and of each experiment with its start, if storage and computation are fast enough."""
    planned = (units * budget_seconds / UNITS for units, _ in EXPERIMENTS.values())
    return (_START_SECONDS, *(_START_SECONDS + seconds for seconds in planned))
