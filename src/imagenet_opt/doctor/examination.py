"""Runs all experiments of the doctor in order, and collects their evidence."""

import platform
import sys
from dataclasses import replace

import numpy as np
import torch
from omegaconf import OmegaConf

from imagenet_opt import machine
from imagenet_opt.data.order import LEAST_BLOCK
from imagenet_opt.display.terminal_table import now
from imagenet_opt.doctor.diagnosis import Finding, Measurements
from imagenet_opt.doctor.environment.gpu import check_gpu
from imagenet_opt.doctor.environment.neighbours import Neighbours, Occupancy, check_swapping
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import check_machine, check_types, facts_of_run, mb_per_image, megapixels
from imagenet_opt.doctor.reading import Announce, Reading
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, Ceiling
from imagenet_opt.measure.storage.limit import mixed_rate
from imagenet_opt.measure.telemetry.gpu import GpuState
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION
from imagenet_opt.pack.forecast import forecast
from imagenet_opt.pack.plan import PRESETS, preset_for
from imagenet_opt.probe.fit.fit_timer import FitTiming
from imagenet_opt.probe.samples import Rows
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, fit_ceiling

_LEAST_BATCH = 8
"""Least number of images in a batch from slow storage."""


class Examination(Reading):
    """All experiments. environment: findings of the checks. runs: the full runs, by the state of their files, "warm" or
    "cold". kernel_seconds, gpu_state, conv_tf32: as in `FitTiming`."""

    def __init__(self, testbed: Testbed, *, budget_seconds: float, announce: Announce) -> None:
        super().__init__(testbed, budget_seconds=budget_seconds, announce=announce)
        self.environment: list[Finding] = []
        self.runs: dict[str, FitTiming] = {}
        self.kernel_seconds: float | None = None
        self.gpu_state: GpuState | None = None
        self.conv_tf32 = False

    def evidence(self, *, command: str) -> Evidence:
        """Run all experiments: first stages that read from memory, then stages that empty the page cache.

        Raises ImagenetOptError if nothing can be read or the network cannot be built.
        """
        self._check_machine()
        self.read()
        neighbours = Neighbours()
        neighbours.start()
        self._decode()
        with self._experiment("the loader, files in memory"):
            if self.facts.kept_in_memory is not False:
                index = self.samples.listed(self.samples.warm_rows)
                self._note_ceiling("loader_warm", self.testbed.load(index, self._span(2), cold=False))
        self._compute()
        with self._experiment("the full run, files in memory"):
            if self.facts.kept_in_memory is not False:
                self._train("warm", self.samples.warm_rows)
        with self._experiment("the loader, files on storage"):
            self._load_from_storage()
        with self._experiment("the full run, files on storage"):
            self._check_time_for_run()
            self._train("cold", self._cold_rows())
        self._finish_environment(neighbours.stop())
        return self._evidence(command)

    def _note_ceiling(self, name: str, ceiling: Ceiling) -> None:
        """Keep a ceiling. Raises ConfigError for a rate that the CPUs or the storage cannot deliver."""
        facts, cold = self.facts, self.limits.get("storage_cold")
        is_limited = cold is not None and name.endswith("_cold") and facts.storage_bound == "bandwidth"
        claim = physics.Claim(
            num_images=ceiling.images_per_second,
            seconds=1.0,
            cpus=facts.usable_cpus,
            megapixels=facts.megapixels,
            mb_per_image=facts.mb_per_image,
            mb_per_second=cold.megabytes_per_second if cold and is_limited else None,
        )
        physics.check(claim)
        self.ceilings[name] = ceiling

    def _check_machine(self) -> None:
        """Run all checks that need no experiment, and print those that fired at once."""
        self.announce("checking the machine and the files")
        self.facts = facts_of_run(self.testbed)
        self.samples.read_few()
        self.environment += check_machine(self.testbed)
        for finding in self.environment:
            if finding.fired:
                print(printable(f"{finding.rule}: {finding.evidence}"), file=sys.stderr, flush=True)

    def _decode(self) -> None:
        testbed, facts, encoded = self.testbed, self.facts, self.samples.encoded
        facts.mb_per_image, facts.megapixels = mb_per_image(encoded), megapixels(encoded)
        with self._experiment("decoding from memory"):
            workers, usable = testbed.num_workers, machine.usable_cpus()
            rates = {1: testbed.decode(self._span(1.5), 1)}
            self._note_ceiling("decode_one", rates[1])
            if workers != 1:
                rates[workers] = testbed.decode(self._span(2))
            self._note_ceiling("decode_all", rates[workers])
            if workers < usable:
                rates[usable] = testbed.decode(self._span(1.5), usable)
            width = preset_for(testbed.loading.image_size)
            if not facts.packed and (expected := forecast(testbed, PRESETS[width])) is not None:
                facts.pack_option = f"for={width}"
                facts.pack_speedup, facts.pack_bytes_ratio = expected.speedup.ratio, expected.bytes_ratio
            self.curves["workers"] = tuple((float(num), rates[num].images_per_second) for num in sorted(rates))

    def _compute(self) -> None:
        testbed, on_gpu = self.testbed, self.testbed.device.type == "cuda"
        with self._experiment("the device alone"):
            alone = testbed.compute(self._span(2), beside=False)
            self.kernel_seconds = alone.kernel_seconds
            if on_gpu and alone.kernel_seconds is None:
                self.facts.no_kernels_reason = f"the profiler recorded no kernel; {PERMISSION}"
            self._use_kernel_seconds(alone)
            self.ceilings["gpu"] = fit_ceiling(alone)
            self.facts.main_cpu_seconds = alone.cpu_seconds
            self.gpu_state, self.conv_tf32 = alone.gpu_state, alone.conv_tf32
        with self._experiment("the device while the loader runs"):
            from_files = self.facts.kept_in_memory is not False
            beside = testbed.compute(self._span(3), beside=True, from_files=from_files)
            self.ceilings["gpu_beside_loader"] = fit_ceiling(beside, in_bursts=True)
            self.gpu_state = beside.gpu_state or self.gpu_state  # the GPU is warm by now
            if beside.copy_seconds:
                self.ceilings["copy_overlapped"] = Ceiling((testbed.loading.batch_size / beside.copy_seconds,))
        with self._experiment("the copy to the GPU"):
            if (copy := testbed.copy(self._span(1))) is not None:
                self.ceilings["copy"] = copy

    def _train(self, state: str, rows: Rows) -> None:
        timing = self.testbed.train(self.samples.listed(rows), self._span(3.5), cold=state == "cold")
        self._use_kernel_seconds(timing)
        ceiling = fit_ceiling(timing, multiple=self.testbed.batches_per_round, in_bursts=True)
        self._note_ceiling(f"full_{state}", ceiling)
        self.runs[state] = timing

    def _use_kernel_seconds(self, timing: FitTiming) -> None:
        """Use the time of the kernels, since the time between CUDA events includes gaps between kernels."""
        if self.kernel_seconds is not None:
            timing.device_seconds = self.kernel_seconds

    def _load_from_storage(self) -> None:
        rows, span = self._cold_rows(), self._span(3)
        batch_size = self._batch_in(span)
        loader = self.testbed.load(self.samples.listed(rows), span, cold=True, batch_size=batch_size)
        workers = max(1.0, loader.facts["num_workers"])
        self._note_bound("storage_cold", loader)
        num_read = loader.facts["batch_size"] * (len(loader.windows) + SKIPPED_ROUNDS_COLD) * workers
        self.facts.cold_passes = max(1.0, num_read / len(rows))
        if self.remote is not None:
            self.facts.throttled_requests = int(loader.facts["throttled"])
            self.facts.storage_requests = num_read / (self.facts.images_per_request or 1.0) + loader.facts["retries"]
        self._note_ceiling("loader_cold", loader)

    def _note_bound(self, stage: str, loader: Ceiling) -> None:
        """Note the requests that a loader has in flight, and what bounds the reads of `stage` with so many requests."""
        self.facts.requests_in_flight = loader.facts["reads_in_flight"] * max(1.0, loader.facts["num_workers"])
        self.facts.storage_bound = None
        if stage in self.limits:
            self.facts.storage_bound = self.limits[stage].at(self.facts.requests_in_flight)

    def _batch_in(self, span: Span) -> int:
        """Images per batch: as configured, or fewer if the storage is too slow to deliver enough such batches in time.

        The storage's rate in images per second does not depend on the batch size.
        """
        configured, reads = int(self.testbed.loading.batch_size), self.ceilings.get("storage_cold")
        if reads is None:
            return configured
        num_batches = (1 + SKIPPED_ROUNDS_COLD + LEAST_ROUNDS) * self.testbed.batches_per_round
        fitting = int(reads.images_per_second * span.limit / num_batches)
        if self.testbed.loading.shuffle == "block":
            fitting -= fitting % LEAST_BLOCK
        return max(min(_LEAST_BATCH, configured), min(configured, fitting))

    def _check_time_for_run(self) -> None:
        """Raise ConfigError if the loader is too slow for the full run to get enough batches in time."""
        if (loader := self.ceilings.get("loader_cold")) is None:
            return
        num_batches, size = (1 + LEAST_ROUNDS) * self.testbed.batches_per_round, self.testbed.loading.batch_size
        needed = num_batches * size / loader.images_per_second
        if needed > self._span(1).last:
            raise ConfigError(
                f"not measured: storage too slow for the budget ({num_batches} batches of {size} images take "
                f"{needed:.0f} s); raise --budget to {needed:.0f}s"
            )

    def _cold_rows(self) -> Rows:
        rows, eviction = self.samples.cold()
        self._note_eviction(eviction)
        return rows

    def _finish_environment(self, occupancy: Occupancy) -> None:
        """Add the checks that need a running experiment, and the experiments that failed."""
        self.facts.others_cpus = occupancy.others_cpu_percent / 100 * self.facts.usable_cpus
        if occupancy.top:
            self.facts.others_names = ", ".join(f"{process.name} (pid {process.pid})" for process in occupancy.top)
        self.environment += [
            *check_gpu(self.gpu_state),
            check_swapping(occupancy, prefetch_factor=self.facts.prefetch_factor),
        ]
        with self._experiment("the types of convolutions"):
            self.environment.append(check_types(self.testbed, conv_tf32=self.conv_tf32))
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.failed.items():
            self.environment.append(Finding(name, None, f"the experiment failed: {reason}"))
            by_reason.setdefault(reason, []).append(name)
        if by_reason:
            reasons = (f"{reason} ({'; '.join(names)})" for reason, names in by_reason.items())
            self.facts.not_measured = ". ".join(reasons)

    def _evidence(self, command: str) -> Evidence:
        environment = tuple(replace(finding, environment=True) for finding in self.environment)
        evidence = Evidence(measurements=self._measurements(command), environment=environment)
        if not evidence.is_cold and (loader := self.ceilings.get("loader_warm")) is not None:
            self._note_bound("storage_cached", loader)
        if (full := self.runs.get(evidence.state)) is None:
            return evidence
        self.facts.waits_per_step = sum(full.waits.values()) / max(1, full.num_ordinary)
        if full.waits:
            self.facts.waits_places = ", ".join(place for place, _ in full.waits.most_common(3))
        self.facts.accelerator_utilization = evidence.busy_share
        measurements = replace(evidence.measurements, phases=full.phases, step_seconds=tuple(full.step_seconds))
        return replace(evidence, measurements=measurements)

    def _measurements(self, command: str) -> Measurements:
        testbed, on_gpu = self.testbed, self.testbed.device.type == "cuda"
        if {"storage_cached", "storage_cold"} <= self.ceilings.keys():
            cached, cold = (self.ceilings[f"storage_{state}"].images_per_second for state in ("cached", "cold"))
            shares = np.linspace(0, 1, 11).tolist()
            self.curves["cached_share"] = tuple((share, mixed_rate(share, cached, cold)) for share in shares)
        hardware = {
            "cpu": machine.cpu_name(),
            "gpu": torch.cuda.get_device_name() if on_gpu else "none",
            "system": platform.platform(),
            "usable CPUs": str(machine.usable_cpus()),
        }
        return Measurements(
            batch_size=testbed.loading.batch_size,
            simulated=None if testbed.simulated is None else testbed.simulated.name,
            ceilings=self.ceilings,
            facts=self.facts,
            curves=self.curves,
            growing=testbed.growing,
            machine=hardware | machine.hardware(self.samples.index.place, on_gpu=on_gpu),
            versions=machine.versions(),
            config=OmegaConf.to_container(testbed.config, resolve=False),  # type: ignore[arg-type]
            command=command,
            date=now(),
        )
