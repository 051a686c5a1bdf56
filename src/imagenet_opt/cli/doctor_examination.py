"""All experiments in order, and what they have shown as evidence."""

import contextlib
import datetime
import itertools
import os
import platform
from collections.abc import Callable, Iterator

import numpy as np
import torch
from omegaconf import OmegaConf

from imagenet_opt import machine
from imagenet_opt.cli.bench_report import cpu_name
from imagenet_opt.cli.doctor_fit import Watched
from imagenet_opt.cli.doctor_samples import Index, Rows
from imagenet_opt.cli.doctor_stages import Patient, Span, watched_ceiling
from imagenet_opt.data.image_file import REFUSED, open_image
from imagenet_opt.measure.diagnosis import Ceiling, Finding
from imagenet_opt.measure.environment.check import check_environment
from imagenet_opt.measure.environment.gpu_state import GpuState
from imagenet_opt.measure.environment.neighbours import Neighbours, Occupancy, check_swapping
from imagenet_opt.measure.environment.setup import Setup
from imagenet_opt.measure.evidence import MOSTLY, Evidence
from imagenet_opt.measure.first_touch import FirstTouch, touch_twice
from imagenet_opt.measure.reads import DEPTHS, DepthReads, read_at_depths
from imagenet_opt.measure.storage_limit import StorageLimit, mixed_rate, storage_limit

Announce = Callable[[str], None]
"""Told what is measured next."""

NUM_EXPERIMENTS = 11
_UNITS = 30
"""Stretches of time that all experiments take together."""
_TOUCHING = 3.0
"""Seconds of first touches, at least: files behind a lazy mount take a third of a second each."""
_LOOKED_AT = 200
"""Files whose place and size tell those of the data set."""


class Examination:
    """budget_seconds: for all experiments, start-up left out; slow storage takes more."""

    def __init__(self, patient: Patient, *, budget_seconds: float, announce: Announce) -> None:
        self.patient, self.samples = patient, patient.samples
        self.unit = budget_seconds / _UNITS
        self.announce = announce
        self.ceilings: dict[str, Ceiling] = {}
        self.curves: dict[str, tuple[tuple[float, float], ...]] = {}
        self.facts: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.kernel_seconds: float | None = None
        self.gpu_state: GpuState | None = None
        self.storage_limit: StorageLimit | None = None

    def evidence(self, *, command: str) -> Evidence:
        """Measures everything: what is read from memory before what empties the page cache."""
        patient = self.patient
        self._look_at_files()
        self._read()
        neighbours = Neighbours()
        neighbours.start()
        self._decode()
        self.announce("the loader, files in memory")
        self.ceilings["loader_warm"] = patient.load(self.samples.listed(self.samples.warm_rows), self._span(2))
        self._compute()
        warm = self._train("warm", self.samples.listed(self.samples.warm_rows))
        self.announce("the loader, files on storage")
        self.ceilings["loader_cold"] = patient.load(self.samples.once(self.samples.cold_rows()), self._span(3))
        self._note_depth()
        cold = self._train("cold", self.samples.once(self.samples.cold_rows()))
        occupancy = neighbours.stop()
        full = cold if self.facts.get("cached_share", 0.0) < MOSTLY else warm
        self._note(occupancy)
        self._note_waits(full)
        return self._evidence(full, occupancy, command)

    def _span(self, units: float) -> Span:
        return Span(units * self.unit)

    def _look_at_files(self) -> None:
        patient, how = self.patient, self.patient.how
        cached = self.samples.residency()
        if cached.share is not None:
            self.facts["cached_share"] = cached.share
        self.texts["cached_share"] = cached.method
        self.facts |= {
            "usable_cpus": machine.usable_cpus(),
            "machine_cpus": os.cpu_count() or 1,
            "num_samples": len(self.samples.index),
            "log_every_n_steps": patient.config.trainer.log_every_n_steps,
            "has_gpu": float(patient.device.type == "cuda"),
        }
        limits = machine.cpu_limits()
        self.texts["cpu_limit"] = min(limits, key=lambda name: limits[name], default="no limit")
        self.texts["resize_on"] = (
            "worker" if how.resize_on == "auto" and patient.device.type == "cpu" else how.resize_on
        )
        self.texts["reads_in_flight"] = str(how.reads_in_flight)
        self.texts["precision"] = str(patient.config.trainer.precision)

    def _read(self) -> None:
        seconds = self.unit
        self.announce("first touch of files, and second")
        few = self._groups(self.samples.take(40))
        touch = touch_twice(self.samples.read, self.samples.evict, few, seconds=max(_TOUCHING, 2 * seconds))
        self._note_touch(touch)
        self.announce("reading from storage, 1 to 256 requests in flight")
        num = min(max(64, len(self.samples.index) // 4), 20_000)
        rows = self.samples.take(num)
        self.texts["cold"] = self.samples.evict(rows).evidence
        curve = read_at_depths(self.samples.read, self._groups(rows), DEPTHS, seconds=seconds / 2)
        self._note_curve(curve)
        self.announce("bringing files into memory")
        self.samples.warm(2 * seconds)
        cached = itertools.cycle(self._groups(self.samples.warm_rows))
        self.announce("reading from memory")
        self.ceilings["storage_cached"] = read_at_depths(self.samples.read, cached, (16,), seconds=seconds)[0].ceiling

    def _decode(self) -> None:
        patient = self.patient
        self.announce("decoding from memory")
        workers, usable = patient.num_workers, machine.usable_cpus()
        self.ceilings["decode_one"] = patient.decode(self._span(1.5), 1)
        self.ceilings["decode_all"] = self.ceilings["decode_one"] if workers == 1 else patient.decode(self._span(2))
        rates = {1: self.ceilings["decode_one"], workers: self.ceilings["decode_all"]}
        if workers < usable:
            rates[usable] = patient.decode(self._span(1.5), usable)
        self.curves["workers"] = tuple((float(num), rates[num].images_per_second) for num in sorted(rates))
        self.facts |= {"num_workers": workers, "prefetch_factor": patient.prefetch_factor}
        self.facts["mb_per_image"] = float(np.mean([len(one) for one in self.samples.encoded])) / 1e6
        self.facts["megapixels"] = _megapixels(self.samples.encoded)

    def _compute(self) -> None:
        patient = self.patient
        self.announce("the GPU alone" if patient.device.type == "cuda" else "the device alone")
        alone = patient.compute(self._span(2), beside=False)
        self.kernel_seconds = alone.kernel_seconds
        self._use_kernel_seconds(alone)
        self.ceilings["gpu"] = watched_ceiling(alone)
        self.facts["main_cpu_seconds"] = alone.cpu_seconds
        self.announce("the device while the loader runs")
        beside = patient.compute(self._span(3), beside=True)
        self.ceilings["gpu_beside_loader"] = watched_ceiling(beside, in_bursts=True)
        self.gpu_state = beside.gpu_state
        if beside.copy_seconds:
            self.ceilings["copy_overlapped"] = Ceiling((patient.how.batch_size / beside.copy_seconds,))
        if (copy := patient.copy(self._span(1))) is not None:
            self.ceilings["copy"] = copy

    def _train(self, state: str, index: Index) -> Watched:
        self.announce(f"the full run, files {'in memory' if state == 'warm' else 'on storage'}")
        seen = self.patient.train(index, self._span(3.5))
        self._use_kernel_seconds(seen)
        self.ceilings[f"full_{state}"] = watched_ceiling(seen, multiple=self.patient.num_workers, in_bursts=True)
        return seen

    def _use_kernel_seconds(self, seen: Watched) -> None:
        """On a GPU, whose events count the gaps between kernels as well."""
        if self.kernel_seconds is not None:
            seen.device_seconds = self.kernel_seconds

    def _note_waits(self, seen: Watched) -> None:
        self.facts["waits_per_step"] = sum(seen.waits.values()) / max(1, seen.num_ordinary)
        if seen.waits:
            self.texts["waits"] = ", ".join(place for place, _ in seen.waits.most_common(3))

    def _note_depth(self) -> None:
        """What bounds the storage with as many requests as the loader had in flight."""
        cold = self.ceilings["loader_cold"].facts
        self.facts["depth"] = cold["reads_in_flight"] * max(1.0, cold["num_workers"])
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
        self.texts["first_touch"] = touch.evidence
        self.facts["lazy"] = float(bool(touch.lazy))

    def _note_curve(self, curve: tuple[DepthReads, ...]) -> None:
        best = max(curve, key=lambda reads: reads.images_per_second)
        self.ceilings["storage_cold"] = best.ceiling
        self.curves["reads_in_flight"] = tuple((float(one.depth), one.images_per_second) for one in curve)
        self.facts["storage_latency_seconds"] = curve[0].latency_median
        if len(curve) > 1:
            self.storage_limit = storage_limit(curve)
            self.texts["storage"] = self.storage_limit.evidence

    def _note(self, occupancy: Occupancy) -> None:
        usable = self.facts["usable_cpus"]
        self.facts["others_cpus"] = occupancy.others_cpu_percent / 100 * usable
        if occupancy.top:
            self.texts["others"] = ", ".join(f"{who.name} (pid {who.pid})" for who in occupancy.top)
        cached, cold = (self.ceilings[f"storage_{state}"].images_per_second for state in ("cached", "cold"))
        shares = np.linspace(0, 1, 11).tolist()
        self.curves["cached_share"] = tuple((share, mixed_rate(share, cached, cold)) for share in shares)

    def _evidence(self, full: Watched, occupancy: Occupancy, command: str) -> Evidence:
        patient = self.patient
        rehearsal = patient.simulated
        if (rated := patient.rated) is not None:
            self.facts["rated_images_per_second"] = rated
        return Evidence(
            batch_size=patient.how.batch_size,
            simulated=None if rehearsal is None else rehearsal.name,
            ceilings=self.ceilings,
            phases=full.phases,
            facts=self.facts,
            texts=self.texts,
            curves=self.curves,
            step_seconds=tuple(full.step_seconds),
            environment=(
                *self._environment(),
                patient.precision(),
                check_swapping(occupancy),
            ),
            machine={
                "cpu": cpu_name(),
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

    def _environment(self) -> list[Finding]:
        patient, config = self.patient, self.patient.config
        how = patient.how
        files = tuple(extent.path for extent in self.samples.extents(self.samples.rows[:_LOOKED_AT]))
        asked = {"num_workers": patient.num_workers, "prefetch_factor": patient.prefetch_factor}
        asked |= {name: getattr(how, name) for name in asked if getattr(how, name) != "auto"}
        return check_environment(
            Setup(
                data_root=str(self.samples.index.folder),
                files=files,
                data_bytes=int(self.facts["mb_per_image"] * 1e6 * len(self.samples.index)),
                **asked,
                fitted_workers=patient.num_workers,
                fitted_prefetch=patient.prefetch_factor,
                batch_bytes=patient.batch_bytes,
                batch_size=how.batch_size,
                precision=str(config.trainer.precision),
                widths=patient.widths,
                num_classes=config.model.num_classes,
                channels_last=bool(config.callbacks.get("acceleration", {}).get("channels_last", False)),
                cuda_index=patient.device.index,
            ),
            self.gpu_state,
        )


def _megapixels(encoded: list[bytes]) -> float:
    """Mean of some images; those that cannot be opened do not count."""
    sizes = []
    for one in encoded[:_LOOKED_AT]:
        with contextlib.suppress(*REFUSED):
            width, height = open_image(one).size
            sizes.append(width * height / 1e6)
    return float(np.mean(sizes or [0.0]))
