"""Runs all experiments of the doctor in order, and makes their evidence."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from omegaconf import OmegaConf

from imagenet_opt import machine
from imagenet_opt.data.order import LEAST_BLOCK
from imagenet_opt.display.terminal_table import now
from imagenet_opt.doctor.environment import FIRST_CHECKS
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import mean_sizes
from imagenet_opt.doctor.measurements import Occupancy, PackForecast
from imagenet_opt.doctor.neighbours import Neighbours
from imagenet_opt.doctor.reading import Reading
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, Ceiling
from imagenet_opt.measure.storage.limit import mixed_rate
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION
from imagenet_opt.pack.forecast import forecast
from imagenet_opt.pack.image import PRESETS, preset_for
from imagenet_opt.probe.fit.fit_timer import FitTiming
from imagenet_opt.probe.samples import Rows
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, fit_ceiling

_LEAST_BATCH = 8
"""Least number of images in a batch from slow storage."""
_NUM_WAITS = 3
"""Places of waits for the GPU that are named."""


class Examination(Reading):
    """All experiments."""

    def evidence(self, *, command: str) -> Evidence:
        """Run all experiments: first stages that read from memory, then stages that empty the page cache.

        Raises ImagenetOptError if nothing can be read or the network cannot be built.
        """
        self._print_limits()
        self.read()
        neighbours = Neighbours()
        with self._experiment("decoding from memory"):
            self._decode()
        with self._experiment("the loader, files in memory"):
            if not self.found["left_out"]:
                index = self.samples.listed(self.samples.warm_rows)
                self._note_ceiling("loader_warm", self.testbed.load(index, self._span(2), cold=False))
        kernel_seconds = self._compute()
        runs: dict[str, FitTiming] = {}
        with self._experiment("the full run, files in memory"):
            if not self.found["left_out"]:
                runs["warm"] = self._train("warm", self.samples.warm_rows, kernel_seconds)
        with self._experiment("the loader, files on storage"):
            self._load_from_storage()
        with self._experiment("the full run, files on storage"):
            self._check_time_for_run()
            runs["cold"] = self._train("cold", self._cold_rows(), kernel_seconds)
        return self._evidence(command, runs, neighbours.stop())

    def _print_limits(self) -> None:
        """Print the checks that fire before any experiment."""
        first = self._evidence("", {}, Occupancy())
        for finding in (rule.look(first) for rule in FIRST_CHECKS):
            if finding.fired:
                print(printable(f"{finding.rule}: {finding.evidence}"), file=sys.stderr, flush=True)

    def _note_ceiling(self, name: str, ceiling: Ceiling) -> None:
        """Keep a ceiling. Raises ConfigError for a rate that the CPUs or the storage cannot deliver."""
        cold = self.limits.get("storage_cold")
        in_flight = ceiling.facts.get("reads_in_flight", 0.0) * max(1.0, ceiling.facts.get("num_workers", 0.0))
        is_limited = cold is not None and name == "loader_cold" and cold.at(in_flight) == "bandwidth"
        claim = physics.Claim(
            num_images=ceiling.images_per_second,
            seconds=1.0,
            cpus=self.host.usable_cpus,
            megapixels=self.found["megapixels"],
            mb_per_image=self.found["mb_per_image"],
            mb_per_second=cold.megabytes_per_second if cold and is_limited else None,
        )
        physics.check(claim)
        self.ceilings[name] = ceiling

    def _decode(self) -> None:
        testbed, workers, usable = self.testbed, self.setup.num_workers, self.setup.usable_cpus
        one = testbed.decode(self._span(1.5), 1)
        self._note_ceiling("decode_one", one)
        rates = [one, testbed.decode(self._span(2)) if workers != 1 else one]
        self._note_ceiling("decode_all", rates[1])
        if workers < usable:
            rates.append(testbed.decode(self._span(1.5), usable))
        # the workers that ran: memory may have no room for as many as there are CPUs
        points = {rate.facts["num_workers"]: rate.images_per_second for rate in rates}
        self.curves["workers"] = tuple(sorted(points.items()))
        width = preset_for(testbed.loading.image_size)
        if not self.setup.packed and (expected := forecast(testbed, PRESETS[width])) is not None:
            self.found["pack"] = PackForecast(f"for={width}", expected.speedup.ratio, expected.bytes_ratio)

    def _compute(self) -> float | None:
        """Seconds of kernels in a step; None if they were not observed."""
        testbed, found = self.testbed, self.found
        on_gpu, kernel_seconds = testbed.device.type == "cuda", None
        with self._experiment("the device alone"):
            alone = testbed.compute(self._span(2), beside=False)
            kernel_seconds = alone.kernel_seconds
            if on_gpu and kernel_seconds is None:
                found["no_kernels"] = f"the profiler recorded no kernel; {PERMISSION}"
            facts = {"main_cpu_seconds": main_cpu_seconds(alone, spins=on_gpu)}
            ceiling = fit_ceiling(_with_kernels(alone, kernel_seconds))
            self.ceilings["gpu"] = replace(ceiling, facts={**ceiling.facts, **facts})
            found["gpu"], found["conv_tf32"] = alone.gpu_state, alone.conv_tf32
        with self._experiment("the device while the loader runs"):
            beside = testbed.compute(self._span(3), beside=True, from_files=not found["left_out"])
            self.ceilings["gpu_beside_loader"] = fit_ceiling(beside, in_bursts=True)
            found["gpu"] = beside.gpu_state or found.get("gpu")  # the GPU is warm by now
            if beside.copy_seconds:
                self.ceilings["copy_overlapped"] = Ceiling((testbed.loading.batch_size / beside.copy_seconds,))
        with self._experiment("the copy to the GPU"):
            if (copy := testbed.copy(self._span(1))) is not None:
                self.ceilings["copy"] = copy
        return kernel_seconds

    def _train(self, state: str, rows: Rows, kernel_seconds: float | None) -> FitTiming:
        timing = self.testbed.train(self.samples.listed(rows), self._span(3.5), cold=state == "cold")
        timing = _with_kernels(timing, kernel_seconds)
        ceiling = fit_ceiling(timing, multiple=self.testbed.batches_per_round, in_bursts=True)
        self._note_ceiling(f"full_{state}", ceiling)
        return timing

    def _load_from_storage(self) -> None:
        rows, span = self._cold_rows(), self._span(3)
        batch_size = self._batch_in(span)
        loader = self.testbed.load(self.samples.listed(rows), span, cold=True, batch_size=batch_size)
        workers = max(1.0, loader.facts["num_workers"])
        num_read = loader.facts["batch_size"] * (len(loader.windows) + SKIPPED_ROUNDS_COLD) * workers
        facts = {**loader.facts, "passes": max(1.0, num_read / len(rows))}
        if self.setup.cache is not None:
            facts["requests"] = num_read / self.found["images_per_request"] + loader.facts["retries"]
        self._note_ceiling("loader_cold", replace(loader, facts=facts))

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

    def _evidence(self, command: str, runs: Mapping[str, FitTiming], occupancy: Occupancy) -> Evidence:
        """Everything that is known by now."""
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
        mb, megapixels = mean_sizes(self.samples.encoded)
        evidence = Evidence(
            batch_size=testbed.loading.batch_size,
            simulated=None if testbed.simulated is None else testbed.simulated.name,
            setup=self.setup,
            host=self.host,
            ceilings=dict(self.ceilings),
            limits=dict(self.limits),
            curves=dict(self.curves),
            occupancy=occupancy,
            failed=dict(self.failed),
            growing=testbed.growing,
            machine=hardware | machine.hardware(self.samples.index.place, on_gpu=on_gpu),
            versions=machine.versions(),
            config=OmegaConf.to_container(testbed.config, resolve=False),  # type: ignore[arg-type]
            command=command,
            date=now(),
            **{"mb_per_image": mb, "megapixels": megapixels, **self.found},
        )
        if (run := runs.get(evidence.state)) is None:
            return evidence
        return replace(
            evidence,
            phases=run.phases,
            step_seconds=tuple(run.step_seconds),
            waits_per_step=sum(run.waits.values()) / max(1, run.num_ordinary),
            waits=tuple(place for place, _ in run.waits.most_common(_NUM_WAITS)),
        )


def _with_kernels(timing: FitTiming, kernel_seconds: float | None) -> FitTiming:
    """The time of the kernels, if it was observed, as the device's: CUDA events also count gaps between kernels."""
    return timing if kernel_seconds is None else replace(timing, device_seconds=kernel_seconds)


def main_cpu_seconds(alone: FitTiming, *, spins: bool) -> float:
    """CPU time that the training process needs for a step. spins: whether waits for the device take CPU time, as CUDA's
    do by default (cudaDeviceScheduleAuto); they are left out, since a busy CPU would end them."""
    if not spins or not alone.launch_seconds:
        return alone.cpu_seconds
    beside = (seconds for name, seconds in alone.phases.items() if name not in ("step", "device", "fetch"))
    return min(alone.cpu_seconds, float(np.median(alone.launch_seconds)) + sum(beside))
