"""What follows from the measurements of a run: rates, limits, waits. The rules read nothing else."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from imagenet_opt.doctor.measurements import Measurements
from imagenet_opt.doctor.thresholds import (
    AGREES,
    BUSY_CPUS,
    FETCH_SHARE,
    HYPER_THREAD,
    MOSTLY_READS,
    NEAR,
    PARTLY_READS,
    SATURATED,
    SLOWER,
    STALL_SECONDS,
)
from imagenet_opt.measure.storage.page_cache import MOSTLY
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY

_NOT_OWN = ("fetch", "step", "device")
"""Phases of the main process that wait for data or for the device, or whose launches are measured alone."""


class Reach(NamedTuple):
    """rate: images per second of a run after a change. limit: the stage that then limits it, a key of STAGES, or
    "main process"."""

    rate: float
    limit: str


@dataclass(frozen=True, kw_only=True)
class Evidence(Measurements):
    """The measurements, and the run that they predict if a limit changes."""

    # The full run

    @cached_property
    def measured_rate(self) -> float:
        return self.rate("full")

    @cached_property
    def run_seconds(self) -> float:
        """Seconds of a step of the full run."""
        return self.batch_size / self.measured_rate

    @cached_property
    def busy_share(self) -> float:
        """Share of the full run in which the device computed."""
        return min(1.0, self.fact("full", "device_seconds") / self.run_seconds)

    @cached_property
    def idle_seconds(self) -> float:
        """Seconds of a step in which the device did not compute."""
        return max(0.0, self.run_seconds - self.fact("full", "device_seconds"))

    # Rates that the stages allow

    @cached_property
    def copy_rate(self) -> float:
        """Rate of the copy to the device, while it computes if that was measured; infinite if nothing is copied."""
        copy = self.ceilings.get("copy_overlapped", self.ceilings.get("copy"))
        return copy.images_per_second if copy else math.inf

    @cached_property
    def cpu_rate(self) -> float:
        """Rate at which the loader and the training process together use all usable CPUs."""
        return self.cpu_rate_with(self.rate("decode_all"))

    def cpu_rate_with(self, decode_rate: float, workers: int | None = None) -> float:
        """`cpu_rate` if the workers together decoded `decode_rate` images per second."""
        cpus = self.setup.usable_cpus
        busy = min(max(1, self.setup.num_workers if workers is None else workers), cpus)
        return cpus / (self.fact("gpu", "main_cpu_seconds") / self.batch_size + busy / decode_rate)

    def capacity(self, cpus: float) -> float:
        """Work that so many CPUs of this machine do, in cores: the second thread of a core adds little."""
        cores = min(cpus, self.host.installed_cores or self.host.installed_cpus)
        return cores + HYPER_THREAD * (cpus - cores)

    def device_beside(self, decode_rate: float) -> float:
        """Images per second of the device beside a loader that could decode `decode_rate`: the less time the workers
        need for a batch, the less they slow down the training process."""
        alone, beside = self.rate("gpu"), min(self.rate("gpu"), self.rate("gpu_beside_loader"))
        busy_share = min(1.0, beside / self.rate("decode_all"))
        return alone / (1 + (alone - beside) / busy_share / decode_rate)

    @cached_property
    def host_seconds(self) -> float:
        """Seconds of a step that the main process needs for itself: launches, callbacks, logging, checkpoints."""
        launches = 0.0
        if self.setup.has_gpu or self.simulated:  # a CPU computes instead
            launches = min(self.fact("gpu", "main_cpu_seconds"), self.batch_size / self.rate("gpu"))
        return launches + sum(seconds for name, seconds in self.phases.items() if name not in _NOT_OWN)

    @cached_property
    def limits(self) -> dict[str, float]:
        """Images per second that each part of the run allows."""
        return {
            "loader": self.rate("loader"),
            "storage": self.storage_limit,
            "cpu": self.cpu_rate,
            "device": self.rate("gpu_beside_loader"),
            "copy": self.copy_rate,
            "host": self.batch_size / self.host_seconds if self.host_seconds else math.inf,
        }

    def reach(self, *, num_workers: int | None = None, **changed: float) -> Reach:
        """The run if some of its `limits` were changed; "decode" may be added. num_workers: None: as they are."""
        limits = self.limits | changed
        slowest = min(limits, key=lambda name: limits[name])
        rate = limits[slowest]
        if not (self.setup.num_workers if num_workers is None else num_workers):  # loading and computing alternate
            data = min(limits[name] for name in ("loader", "storage", "decode") if name in limits)
            rate = 1 / (1 / data + 1 / min(changed.get("device", self.rate("gpu")), limits["copy"], limits["host"]))
        return Reach(rate, self._stage_of("gpu" if slowest == "device" and "device" in changed else slowest))

    def _stage_of(self, limit: str) -> str:
        copy = "copy_overlapped" if "copy_overlapped" in self.ceilings else "copy"
        names = {"cpu": "decode_all", "decode": "decode_all", "device": "gpu_beside_loader", "copy": copy}
        return names.get(limit, "main process" if limit == "host" else self.stage(limit))

    @cached_property
    def expected(self) -> Reach:
        """The lowest ceiling of the run; storage that delivers in bursts counts with the loader."""
        return self.reach(storage=math.inf, host=math.inf)

    @cached_property
    def follows_stages(self) -> bool:
        """Whether the run is as fast as its slowest stage."""
        return self.measured_rate >= AGREES * self.expected.rate

    @cached_property
    def is_idle(self) -> bool:
        """Whether the device computes too little of the time."""
        return self.busy_share < HEALTHY_BUSY

    # Waits for data

    @cached_property
    def requests_in_flight(self) -> float:
        """Mean number of requests of all workers together in flight."""
        return self.fact("loader", "reads_in_flight") * max(1.0, self.fact("loader", "num_workers"))

    @cached_property
    def depths(self) -> list[tuple[float, float]]:
        """(requests in flight, images/s read cold) of each measurement in which the storage answered in time."""
        return [(depth, rate) for depth, rate in self.curves.get("reads_in_flight", ()) if rate > 0]

    @cached_property
    def storage_rate_at_depth(self) -> float:
        """Rate of the storage with as many requests in flight as the loader has, interpolated between the measured
        rates."""
        if not self.is_cold or not self.depths:
            return self.rate("storage")
        depths, rates = np.log(np.array(self.depths)).T
        return float(np.exp(np.interp(np.log(max(1.0, self.requests_in_flight)), depths, rates)))

    @cached_property
    def _most_and_knee(self) -> tuple[float, float]:
        """Highest rate of the storage, and the requests in flight that are needed for it (the knee); infinite if the
        rate still grows.

        Requests in flight are requests/s times latency (Little's law). So the rate grows up to the knee; then only the
        latency grows. The knee is the least of all measurements, as a stall makes one slower, never faster.
        """
        most = max((rate for _, rate in self.depths), default=math.inf)
        knee = min((depth * most / rate for depth, rate in self.depths), default=math.inf)
        is_saturated = any(depth >= SATURATED * knee for depth, _ in self.depths)
        return (most, knee) if is_saturated else (math.inf, math.inf)

    @cached_property
    def _is_busy_reader(self) -> bool:
        """Whether CPU time limited the test of the storage."""
        return self.fact("storage", "cpus") >= BUSY_CPUS

    @cached_property
    def storage_limit(self) -> float:
        """Images per second that the storage allows the loader; infinite if that is unknown, or files are in memory."""
        if not self.is_cold and 0 < self.hits < MOSTLY and "loader_cold" in self.ceilings:
            return self.ceilings["loader_cold"].images_per_second / (1 - self.hits)
        if self.storage_bound == "cpu" or self._is_busy_reader:
            return math.inf
        if self.is_cold and self.configured("data.reads_in_flight", "auto") != "auto":
            return max(self.storage_rate_at_depth, self.rate("loader"))
        return self._most_and_knee[0] if self.is_cold else self.rate("storage")

    @cached_property
    def storage_bound(self) -> str:
        """What bounds the loader's reads: "latency", "bandwidth", or "cpu" if this process cannot read faster.

        A storage that gives much more than the loader takes has bandwidth left, unless the loader always has more
        requests in flight than the storage serves at a time.
        """
        if not self.is_cold:  # files are in memory, or samples on the disk of the local cache
            return "cpu" if self._is_busy_reader or self.setup.cache_room is None else "bandwidth"
        most, knee = self._most_and_knee
        if self.requests_in_flight < knee:
            return "latency"
        if self._is_busy_reader:
            return "cpu"
        if self.requests_in_flight >= SATURATED * knee:
            return "bandwidth"
        return "latency" if self.rate("loader") < SLOWER * most else "bandwidth"

    @cached_property
    def longest_gap_seconds(self) -> float:
        """Longest time between two batches of the loader, in seconds."""
        return self.fact("loader", "longest_gap_seconds")

    @cached_property
    def waiting_share(self) -> float:
        """Share of a worker's time in which it waits for files; its waits for a CPU do not count."""
        read, decode = self.fact("loader", "read_seconds"), self.fact("loader", "decode_seconds")
        return read / (read + decode) if read else 0.0

    @cached_property
    def worker_slowdown(self) -> float:
        """Seconds in which a worker computes or waits for a CPU / seconds in which it computes."""
        decode = self.fact("loader", "decode_seconds")
        return 1 + self.fact("loader", "cpu_wait_seconds") / decode if decode else 1.0

    @cached_property
    def main_slowdown(self) -> float:
        """The same of the main thread, while the device trains alone."""
        return self.fact("gpu", "main_slowdown") or 1.0

    def loader_with(self, speedup: float) -> float:
        """Images per second of the loader if an image took a worker's CPU less time, with the waits for a CPU; waits
        for files stay."""
        on_cpu = (1 - self.waiting_share) * self.worker_slowdown
        return self.rate("loader") * (self.waiting_share + on_cpu) / (self.waiting_share + on_cpu / speedup)

    @cached_property
    def is_starved(self) -> bool:
        """Whether the device is idle because training waits for batches, or is as slow as the loader alone."""
        supply = min(self.rate("loader"), self.cpu_rate)
        follows = supply < AGREES * self.rate("gpu_beside_loader") and self.measured_rate > SLOWER * supply
        return self.is_idle and (self.phases.get("fetch", 0.0) >= FETCH_SHARE * self.idle_seconds or follows)

    @cached_property
    def is_slow_reading(self) -> bool:
        """Whether training waits for the storage, and not for the CPU time that reading takes.

        A storage that reads faster alone may still make workers wait: each batch waits for its latest file, and a short
        test of the storage may miss pauses of seconds.
        """
        waits = self.waiting_share > MOSTLY_READS or (
            self.waiting_share > PARTLY_READS and (self.longest_gap_seconds >= STALL_SECONDS or self.follows_stages)
        )
        is_late = waits or self.storage_rate_at_depth < NEAR * self.rate("loader")
        return self.storage_bound != "cpu" and is_late and self.is_starved
