"""All experiments in order, and what they have shown as evidence."""

import contextlib
import datetime
import itertools
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from omegaconf import OmegaConf

from imagenet_opt import machine
from imagenet_opt.cli.doctor_ceilings import SKIPPED_ROUNDS_COLD, Span, watched_ceiling
from imagenet_opt.cli.doctor_environment import look_around, look_at_run, mb_per_image, megapixels
from imagenet_opt.cli.doctor_fit import Watched
from imagenet_opt.cli.doctor_samples import Index, Rows
from imagenet_opt.cli.doctor_stages import Patient
from imagenet_opt.data.depth import FIRST
from imagenet_opt.errors import ConfigError, ImagenetOptError, printable
from imagenet_opt.measure import physics
from imagenet_opt.measure.diagnosis import Ceiling, Finding
from imagenet_opt.measure.environment.gpu import check_gpu
from imagenet_opt.measure.environment.gpu_state import GpuState
from imagenet_opt.measure.environment.neighbours import Neighbours, Occupancy, check_swapping
from imagenet_opt.measure.evidence import MOSTLY, Evidence
from imagenet_opt.measure.first_touch import NOT_MEMORY_SECONDS, FirstTouch, touch_twice
from imagenet_opt.measure.launch_gaps import PERMISSION
from imagenet_opt.measure.page_cache import Eviction, Residency
from imagenet_opt.measure.rate import LEAST_ROUNDS
from imagenet_opt.measure.reads import DEPTHS, DepthReads, read_at_depths
from imagenet_opt.measure.storage_limit import StorageLimit, mixed_rate, storage_limit
from imagenet_opt.measure.unjudged import NOT_MEASURED

Announce = Callable[[str], None]
"""Told what is measured next."""

NUM_EXPERIMENTS = 14
_CHECKED = ("loader_warm", "loader_cold", "decode_one", "decode_all", "full_warm", "full_cold")
"""Stages for which files are decoded, or read from storage."""
_LEAST_BATCH = 8
"""Images of a batch from slow storage, at least."""
_DEPTHS_CACHED = (1, 4, 16)
"""Beyond these a process of Python threads reads no more from memory, and hardly hears the clock."""
UNITS = 30
"""Stretches of time that all experiments take together."""
_TOUCHING = 3.0
"""Seconds of first touches, at least: files behind a lazy mount take a third of a second each."""


class Examination:
    """budget_seconds: for all experiments, start-up left out; slow storage takes more.

    failed: experiments that could not be made, and why; the others go on.
    """

    def __init__(self, patient: Patient, *, budget_seconds: float, announce: Announce) -> None:
        self.patient, self.samples = patient, patient.samples
        self.unit = budget_seconds / UNITS
        self.announce = announce
        self.ceilings: dict[str, Ceiling] = {}
        self.curves: dict[str, tuple[tuple[float, float], ...]] = {}
        self.facts: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.environment: list[Finding] = []
        self.runs: dict[str, Watched] = {}
        self.kernel_seconds: float | None = None
        self.gpu_state: GpuState | None = None
        self.conv_tf32 = False
        self.storage_limit: StorageLimit | None = None

    def evidence(self, *, command: str) -> Evidence:
        """Measures everything: what is read from memory before what empties the page cache.

        Raises ImagenetOptError where nothing can be read or the network cannot be built.
        """
        self._look_around()
        self._read()
        neighbours = Neighbours()
        neighbours.start()
        self._decode()
        if self._stays_in_memory("the loader, files in memory"):
            with self._experiment("the loader, files in memory"):
                self._note_ceiling("loader_warm", self.patient.load(self._warm(), self._span(2), cold=False))
        self._compute()
        if self._stays_in_memory("the full run, files in memory"):
            self._train("warm", self._warm)
        with self._experiment("the loader, files on storage"):
            self._load_from_storage()
        self._train("cold", self._cold)
        self._note(occupancy := neighbours.stop())
        return self._evidence(occupancy, command)

    def _span(self, units: float) -> Span:
        """An experiment that is slow may take as long as all were to take."""
        return Span(units * self.unit, longest=UNITS * self.unit)

    @contextlib.contextmanager
    def _experiment(self, what: str) -> Iterator[None]:
        """Announced; where it fails the reason is kept, and the next one comes."""
        self.announce(what)
        try:
            yield
        except (ImagenetOptError, torch.OutOfMemoryError) as error:
            self.failed[what] = printable(str(error).partition("\n")[0]).removeprefix("not measured: ")
            print(f"{what} could not be measured: {self.failed[what]}", file=sys.stderr, flush=True)

    def _stays_in_memory(self, what: str) -> bool:
        """Whether files that were just read are in memory; where not, there is no such experiment."""
        if not self.facts.get("kept_in_memory", 1.0):
            self.announce(f"{what}: left out")
            return False
        return True

    def _note_ceiling(self, name: str, found: Ceiling) -> None:
        """Raises ConfigError for a rate that the CPUs or the storage cannot give."""
        if name in _CHECKED:
            physics.check(self._claim(name, found))
        self.ceilings[name] = found

    def _claim(self, name: str, found: Ceiling) -> physics.Claim:
        cold, bound = self.ceilings.get("storage_cold"), self.texts.get("storage_bound")
        limit = cold.facts["megabytes_per_second"] if cold and name.endswith("_cold") and bound == "bandwidth" else None
        return physics.Claim(
            num_images=found.images_per_second,
            seconds=1.0,
            cpus=self.facts.get("usable_cpus"),
            megapixels=self.facts.get("megapixels"),
            mb_per_image=self.facts.get("mb_per_image"),
            mb_per_second=limit,
        )

    def _look_around(self) -> None:
        """What needs no experiment; what is found is said at once."""
        self.announce("looking at the machine and the files")
        facts, texts = look_at_run(self.patient)
        self.facts |= facts
        self.texts |= texts
        self.samples.glance()
        self.facts |= {"num_workers": self.patient.num_workers, "prefetch_factor": self.patient.prefetch_factor}
        self.environment += look_around(self.patient)
        for finding in self.environment:
            if finding.fired:
                print(printable(f"{finding.rule}: {finding.evidence}"), file=sys.stderr, flush=True)

    def _read(self) -> None:
        seconds = self.unit
        with self._experiment("first touch of files, and second"):
            few = list(self._groups(self.samples.take(40)))
            self.facts["images_per_request"] = sum(map(len, few)) / len(few)
            touch = touch_twice(self.samples.read, self.samples.evict, few, seconds=max(_TOUCHING, 2 * seconds))
            self._note_touch(touch)
        with self._experiment("reading from storage, 1 to 256 requests in flight"):
            rows = self.samples.take(min(max(64, len(self.samples.index) // 4), 20_000))
            self._note_eviction(self.samples.evict(rows))
            groups = list(self._groups(rows))
            again = [] if self.facts.get("lazy") else itertools.cycle(groups)  # a second touch would be another storage
            curve = read_at_depths(
                self.samples.read_and_drop, itertools.chain(groups, again), DEPTHS, seconds=seconds / 2
            )
            self._note_curve(curve)
        with self._experiment("bringing files into memory"):
            self.samples.warm(2 * seconds)
            self._note_kept(self.samples.kept())
        with self._experiment("reading from memory, 1 to 16 requests in flight"):
            self._read_from_memory(seconds)

    def _read_from_memory(self, seconds: float) -> None:
        if not self.facts["kept_in_memory"]:
            return
        cached = itertools.cycle(self._groups(self.samples.warm_rows))
        found = read_at_depths(self.samples.read, cached, _DEPTHS_CACHED, seconds=seconds / len(_DEPTHS_CACHED))
        if self.facts["kept_in_memory"] < 1 and found[0].latency_median >= NOT_MEMORY_SECONDS:
            self._note_kept(Residency(0.0, f"each takes {1000 * found[0].latency_median:.0f} ms again"))
            return
        self.ceilings["storage_cached"] = _best(found).ceiling
        self.curves["reads_in_flight_cached"] = _points(found)

    def _note_kept(self, kept: Residency) -> None:
        """Files that are read again may come from the storage again, as on a mount that caches nothing."""
        self.facts["kept_in_memory"] = 0.5 if kept.share is None else float(kept.share >= MOSTLY)
        if kept.share is not None and kept.share < MOSTLY:
            reason = f"{kept.share:.0%} of those just read is there ({kept.method})"
            self.texts["memory"] = f"they do not stay in this machine's memory: {reason}; nothing is measured there"

    def _decode(self) -> None:
        patient, encoded = self.patient, self.samples.encoded
        self.facts |= {"mb_per_image": mb_per_image(encoded), "megapixels": megapixels(encoded)}
        with self._experiment("decoding from memory"):
            workers, usable = patient.num_workers, machine.usable_cpus()
            rates = {1: patient.decode(self._span(1.5), 1)}
            self._note_ceiling("decode_one", rates[1])
            if workers != 1:
                rates[workers] = patient.decode(self._span(2))
            self._note_ceiling("decode_all", rates[workers])
            if workers < usable:
                rates[usable] = patient.decode(self._span(1.5), usable)
            self.curves["workers"] = tuple((float(num), rates[num].images_per_second) for num in sorted(rates))

    def _compute(self) -> None:
        patient = self.patient
        with self._experiment("the GPU alone" if patient.device.type == "cuda" else "the device alone"):
            alone = patient.compute(self._span(2), beside=False)
            self.kernel_seconds = alone.kernel_seconds
            if patient.device.type == "cuda" and alone.kernel_seconds is None:
                self.texts["kernels"] = f"no kernel was seen; {PERMISSION}"
            self._use_kernel_seconds(alone)
            self.ceilings["gpu"] = watched_ceiling(alone)
            self.facts["main_cpu_seconds"] = alone.cpu_seconds
            self.gpu_state, self.conv_tf32 = alone.gpu_state, alone.conv_tf32
        with self._experiment("the device while the loader runs"):
            from_files = bool(self.facts.get("kept_in_memory", 1.0))
            beside = patient.compute(self._span(3), beside=True, from_files=from_files)
            self.ceilings["gpu_beside_loader"] = watched_ceiling(beside, in_bursts=True)
            self.gpu_state = beside.gpu_state or self.gpu_state  # by now it is warm
            if beside.copy_seconds:
                self.ceilings["copy_overlapped"] = Ceiling((patient.how.batch_size / beside.copy_seconds,))
        with self._experiment("the copy to the GPU"):
            if (copy := patient.copy(self._span(1))) is not None:
                self.ceilings["copy"] = copy

    def _train(self, state: str, index: Callable[[], Index]) -> None:
        with self._experiment(f"the full run, files {'in memory' if state == 'warm' else 'on storage'}"):
            if state == "cold":
                self._check_time_for_run()
            seen = self.patient.train(index(), self._span(3.5), cold=state == "cold")
            self._use_kernel_seconds(seen)
            found = watched_ceiling(seen, multiple=self.patient.num_workers, in_bursts=True)
            self._note_ceiling(f"full_{state}", found)
            self.runs[state] = seen

    def _load_from_storage(self) -> None:
        rows, span = self._cold_rows(), self._span(3)
        batch = self._batch_in(span)
        found = self.patient.load(self.samples.listed(rows), span, cold=True, batch_size=batch)
        self._note_depth(found)
        num_read = (
            found.facts["batch_size"]
            * (len(found.windows) + SKIPPED_ROUNDS_COLD)
            * max(1.0, found.facts["num_workers"])
        )
        self.facts["cold_passes"] = max(1.0, num_read / len(rows))
        self._note_ceiling("loader_cold", found)

    def _batch_in(self, span: Span) -> int:
        """Images of a batch: as configured, or fewer where the storage is so slow that too few such batches were made.

        How many images a slow storage gives does not depend on how many of them make a batch.
        """
        configured, reads = int(self.patient.how.batch_size), self.ceilings.get("storage_cold")
        if reads is None:
            return configured
        num_batches = (1 + SKIPPED_ROUNDS_COLD + LEAST_ROUNDS) * max(1, self.patient.num_workers)
        fitting = int(reads.images_per_second * span.limit / num_batches)
        return max(min(_LEAST_BATCH, configured), min(configured, fitting))

    def _check_time_for_run(self) -> None:
        """Raises ConfigError where the loader is so slow that the full run would not make enough batches in time."""
        loader = self.ceilings.get("loader_cold")
        if loader is None:
            return
        num_batches = (1 + LEAST_ROUNDS) * max(1, self.patient.num_workers)
        needed = num_batches * self.patient.how.batch_size / loader.images_per_second
        if needed > self._span(1).last:
            says = f"{num_batches} batches of {self.patient.how.batch_size} images take {needed:.0f} s"
            raise ConfigError(
                f"not measured: storage too slow for the budget ({says}); raise --budget to {needed:.0f}s"
            )

    def _warm(self) -> Index:
        return self.samples.listed(self.samples.warm_rows)

    def _cold(self) -> Index:
        return self.samples.listed(self._cold_rows())

    def _cold_rows(self) -> Rows:
        rows, eviction = self.samples.cold()
        self._note_eviction(eviction)
        return rows

    def _use_kernel_seconds(self, seen: Watched) -> None:
        """On a GPU, whose events count the gaps between kernels as well."""
        if self.kernel_seconds is not None:
            seen.device_seconds = self.kernel_seconds

    def _note_waits(self, seen: Watched) -> None:
        self.facts["waits_per_step"] = sum(seen.waits.values()) / max(1, seen.num_ordinary)
        if seen.waits:
            self.texts["waits"] = ", ".join(place for place, _ in seen.waits.most_common(3))

    def _note_depth(self, loader: Ceiling) -> None:
        """What bounds the storage with as many requests as the loader had in flight."""
        self.facts["depth"] = loader.facts["reads_in_flight"] * max(1.0, loader.facts["num_workers"])
        if self.storage_limit is not None:
            self.texts["storage_bound"] = self.storage_limit.at(self.facts["depth"])

    def _groups(self, rows: Rows) -> Iterator[Rows]:
        """What one request brings, batch by batch."""
        size = self.patient.how.batch_size
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            for group in self.samples.store.groups(batch):
                yield batch[group]

    def _note_touch(self, touch: FirstTouch) -> None:
        self.facts["first_touch_seconds"] = float(np.median(touch.first_seconds))
        self.facts["second_touch_seconds"] = float(np.median(touch.second_seconds))
        self.facts["first_depth"] = float(self._first_depth() * max(1, self.patient.num_workers))
        self.texts["first_touch"] = touch.evidence
        if touch.lazy is not None:
            self.facts["lazy"] = float(touch.lazy)

    def _first_depth(self) -> int:
        """Requests of each worker with which an epoch begins."""
        asked = self.patient.how.reads_in_flight
        return FIRST if asked == "auto" else int(asked)

    def _note_eviction(self, eviction: Eviction) -> None:
        """The first that is not verified tells of all."""
        if self.facts.get("cold_verified", 1.0):
            self.facts["cold_verified"] = float(eviction.verified)
            self.texts["cold"] = eviction.evidence

    def _note_curve(self, curve: tuple[DepthReads, ...]) -> None:
        self.ceilings["storage_cold"] = _best(curve).ceiling
        self.curves["reads_in_flight"] = _points(curve)
        self.facts["storage_latency_seconds"] = curve[0].latency_median
        if len(curve) > 1:
            self.storage_limit = storage_limit(curve)
            self.texts["storage"] = self.storage_limit.evidence

    def _note(self, occupancy: Occupancy) -> None:
        usable = self.facts["usable_cpus"]
        self.facts["others_cpus"] = occupancy.others_cpu_percent / 100 * usable
        if occupancy.top:
            self.texts["others"] = ", ".join(f"{who.name} (pid {who.pid})" for who in occupancy.top)
        if {"storage_cached", "storage_cold"} <= self.ceilings.keys():
            cached, cold = (self.ceilings[f"storage_{state}"].images_per_second for state in ("cached", "cold"))
            shares = np.linspace(0, 1, 11).tolist()
            self.curves["cached_share"] = tuple((share, mixed_rate(share, cached, cold)) for share in shares)
        if self.patient.rated is not None:
            self.facts["rated_images_per_second"] = self.patient.rated

    def _evidence(self, occupancy: Occupancy, command: str) -> Evidence:
        patient = self.patient
        self._finish_environment(occupancy)
        seen = Evidence(
            batch_size=patient.how.batch_size,
            simulated=None if patient.simulated is None else patient.simulated.name,
            ceilings=self.ceilings,
            phases={},
            facts=self.facts,
            texts=self.texts,
            curves=self.curves,
            environment=tuple(self.environment),
            machine={
                "cpu": machine.cpu_name(),
                "gpu": torch.cuda.get_device_name() if patient.device.type == "cuda" else "none",
                "system": platform.platform(),
                "usable CPUs": str(machine.usable_cpus()),
            }
            | machine.hardware(str(self.samples.index.folder), on_gpu=patient.device.type == "cuda"),
            versions=machine.versions(),
            config=OmegaConf.to_container(patient.config, resolve=False),  # type: ignore[arg-type]
            command=command,
            date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        if (full := self.runs.get(seen.state)) is None:
            return seen
        self._note_waits(full)
        facts = self.facts | {"accelerator_utilization": seen.busy}
        return replace(seen, phases=full.phases, step_seconds=tuple(full.step_seconds), facts=facts)

    def _finish_environment(self, occupancy: Occupancy) -> None:
        """With what is only seen while something runs, and what could not be looked at."""
        self.environment += [*check_gpu(self.gpu_state), check_swapping(occupancy)]
        with self._experiment("the types of convolutions"):
            self.environment.append(self.patient.precision(conv_tf32=self.conv_tf32))
        by_reason: dict[str, list[str]] = {}
        for what, reason in self.failed.items():
            self.environment.append(Finding(what, None, f"it could not be measured: {reason}", environment=True))
            by_reason.setdefault(reason, []).append(what)
        if by_reason:
            self.texts[NOT_MEASURED] = ". ".join(f"{why} ({'; '.join(what)})" for why, what in by_reason.items())


def _best(curve: tuple[DepthReads, ...]) -> DepthReads:
    return max(curve, key=lambda reads: reads.images_per_second)


def _points(curve: tuple[DepthReads, ...]) -> tuple[tuple[float, float], ...]:
    return tuple((float(one.depth), one.images_per_second) for one in curve)
