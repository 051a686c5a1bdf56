"""The rates, limits and gains that follow from the measurements; the rules read nothing else."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imagenet_opt.doctor.measurements import Measurements
from imagenet_opt.measure.storage.page_cache import MOSTLY

NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "full")
"""Ceilings that every verdict needs, named as in `Evidence.stage`."""
READS = (*NEEDS, "storage")
BUSY_ENOUGH = 0.9
"""A run is healthy if the accelerator computes this share of the time, which MLPerf Storage asks for with ResNet-50."""
SLOWER = 0.8  # a stage with less than this share of another stage's rate is slower; a smaller difference is noise
AGREES = 0.9
"""A run with this share of the expected rate is as fast as its stages; faster than 1 / AGREES contradicts them."""
NEARLY_ALL = 0.9  # the fewest requests in flight that reach this share of the storage's highest rate are enough
NEAR = 1.5  # a storage slower than this many times the loader's rate limits the loader; both rates vary in bursts
AMPLE = 1.1  # a loader faster than this many times the GPU's rate is fast enough
MAIN_SHARE = 0.4  # a phase of the main process is a cause only if it fills this share of the GPU's idle time
OTHERS_SHARE = 0.2
"""Above this share of the usable CPUs, other processes use more than the usual background work of a system."""
MOSTLY_READS = 0.8
"""Above this share of a worker's time, its waits for files limit it, whatever the storage can do alone."""
STALL_SECONDS = 1.0
"""A pause of this length between two batches is a stall of the storage, not the latency of a single request."""
ORDINARY_WAITS = 0.5  # ordinary steps wait for the GPU if there are at least this many waits per step
SPARE_BATCHES = 3  # batches of a worker in addition to the batches ahead: one being made, one being sent, one in use
BATCHES_SHARE = 0.5  # share of the free memory that batches may use
_LOADERS = 2  # loaders of a process: the workers of training keep their batches while validation has its own workers


@dataclass(frozen=True, kw_only=True)
class Evidence(Measurements):
    """Measurements and what follows from them. Rates in images per second, shares 0 to 1."""

    # The state of the files

    @property
    def device(self) -> str:
        """What computes, for sentences: "the GPU", "the CPU" or "the simulated A10G"."""
        if self.simulated:
            return f"the simulated {self.simulated}"
        return "the GPU" if self.setup.has_gpu else "the CPU"

    @property
    def cached_share(self) -> float:
        """Share of the data in the page cache (of a URL: in the local cache); 0 if unknown."""
        return self.setup.cached_share or 0.0

    @property
    def is_cold(self) -> bool:
        """Whether some of the data was not in the page cache (of a URL: in the local cache), and the run is judged by
        reads from storage. Always if recently read files are not read from memory."""
        return bool(self.left_out) or (self.cached_share < MOSTLY and not self._is_served)

    @property
    def _is_served(self) -> bool:
        """Whether a run with the present share of the data in its local cache is as fast as with all of the data there,
        because the storage delivers the rest in time."""
        if not self.cached_share or self.setup.cache is None or not {"full_cold", "full_warm"} <= self.ceilings.keys():
            return False
        cold, warm = (self.ceilings[f"full_{state}"].images_per_second for state in ("cold", "warm"))
        return cold / (1 - self.cached_share) >= SLOWER * warm

    @property
    def state(self) -> str:
        return "cold" if self.is_cold else "warm"

    def stage(self, name: str) -> str:
        """Key of a ceiling. "loader", "storage" and "full" stand for the ceilings of the state (cold or warm) by which
        the run is judged."""
        if name == "storage":
            return "storage_cold" if self.is_cold else "storage_cached"
        return f"{name}_{self.state}" if name in ("loader", "full") else name

    def lacks(self, names: Iterable[str]) -> list[str]:
        """The stages with these names that were not measured."""
        return [stage for stage in map(self.stage, names) if stage not in self.ceilings]

    def configured(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the configuration; the default if the configuration has no such key."""
        node: Any = self.config
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node

    # Rates of stages

    def rate(self, name: str) -> float:
        """Images per second of a ceiling, named as in `stage`."""
        return self.ceilings[self.stage(name)].images_per_second

    def fact(self, name: str, fact: str) -> float:
        """A further measurement of a ceiling; 0 if it is missing."""
        return self.ceilings[self.stage(name)].facts.get(fact, 0.0)

    @property
    def requests_in_flight(self) -> float:
        """Mean number of requests of all workers together in flight."""
        return self.fact("loader", "reads_in_flight") * max(1.0, self.fact("loader", "num_workers"))

    @property
    def num_requests(self) -> float:
        """Requests of the loader to the service of a URL, with those that were repeated; 0 for a folder."""
        return self.ceilings["loader_cold"].facts.get("requests", 0.0) if "loader_cold" in self.ceilings else 0.0

    @property
    def num_refused(self) -> float:
        """Those of them that the service refused as too many (429, 503)."""
        return self.ceilings["loader_cold"].facts.get("throttled", 0.0) if self.num_requests else 0.0

    @property
    def latency_seconds(self) -> float:
        """Median time of a request to storage while no other request is in flight."""
        limit = self.limits.get(self.stage("storage"))
        return limit.latency if limit else self.fact("storage", "latency_median")

    @property
    def _depths(self) -> list[tuple[float, float]]:
        """(requests in flight, rate) of each measurement in which the storage answered in time."""
        return [(depth, rate) for depth, rate in self.curves.get("reads_in_flight", ()) if rate > 0]

    @property
    def storage_rate_at_depth(self) -> float:
        """Rate of the storage with as many requests in flight as the loader has, interpolated between the measured
        rates."""
        if not self.is_cold or not self._depths:
            return self.rate("storage")
        depths, rates = np.log(np.array(self._depths)).T
        return float(np.exp(np.interp(np.log(max(1.0, self.requests_in_flight)), depths, rates)))

    @property
    def best_depth(self) -> tuple[float, float]:
        """(requests in flight, rate): the fewest requests in flight that reach nearly the storage's highest rate."""
        most = max((rate for _, rate in self._depths), default=0.0)
        return next((point for point in sorted(self._depths) if point[1] >= NEARLY_ALL * most), (0.0, 0.0))

    @property
    def storage_bound(self) -> str:
        """What bounds the loader's reads: "latency", "bandwidth" or "cpu"; "" if unknown. A storage that gives much
        more than the loader takes has bandwidth left."""
        if (limit := self.limits.get(self.stage("storage"))) is None:
            return ""
        bound = limit.at(self.requests_in_flight)
        has_more = bound == "bandwidth" and self.rate("loader") < SLOWER * limit.images_per_second
        return "latency" if has_more else bound

    @property
    def copy_stage(self) -> str:
        """Key of the copy's rate while the device computes; if that rate was not measured, of the copy alone."""
        return "copy_overlapped" if "copy_overlapped" in self.ceilings else "copy"

    @property
    def copy_rate(self) -> float:
        """Rate of the copy to the device; infinite if nothing is copied."""
        return self.rate(self.copy_stage) if self.copy_stage in self.ceilings else math.inf

    @property
    def is_overlapped(self) -> bool:
        """Whether batches are copied while the device computes (data.copies=ahead, the default, or registered)."""
        return self.configured("data.copies", "ahead") in ("ahead", "registered")

    def rate_with_copy(self, rate: float) -> float:
        """Rate of a device with its copies included. rate: of the device without copies."""
        return min(rate, self.copy_rate) if self.is_overlapped else 1 / (1 / rate + 1 / self.copy_rate)

    @property
    def fed_rate(self) -> float:
        """Rate of the device while the loader runs and batches are copied. Without data.copies=ahead, copies run on the
        compute stream, so their time is added to the step's."""
        beside = self.rate("gpu_beside_loader")
        return min(beside, self.rate_with_copy(beside if self.is_overlapped else self.rate("gpu")))

    @property
    def compute_rate(self) -> float:
        """Rate of a device that never waits."""
        return self.batch_size / self.fact("gpu", "device_seconds")

    @property
    def cpu_rate(self) -> float:
        """Rate at which the loader and the training process together use all usable CPUs."""
        return self.cpu_rate_with(self.rate("decode_all"))

    def cpu_rate_with(self, decode_rate: float, workers: int | None = None) -> float:
        """`cpu_rate` if the workers together decoded `decode_rate` images per second."""
        cpus = self.setup.usable_cpus
        busy = min(max(1, self.setup.num_workers if workers is None else workers), cpus)
        return cpus / (self.fact("gpu", "main_cpu_seconds") / self.batch_size + busy / decode_rate)

    @property
    def supply_rate(self) -> float:
        """Rate at which batches can arrive while the training process also uses a CPU."""
        return min(self.rate("loader"), self.cpu_rate)

    @property
    def expected_rate(self) -> float:
        if not self.setup.num_workers:  # loading and computing alternate
            return 1 / (1 / self.rate("gpu") + 1 / self.rate("loader"))
        return min(self.fed_rate, self.supply_rate)

    # The full run

    @property
    def measured_rate(self) -> float:
        return self.rate("full")

    @property
    def run_seconds(self) -> float:
        """Seconds of a step of the full run."""
        return self.batch_size / self.measured_rate

    @property
    def busy_share(self) -> float:
        """Share of the full run in which the device computed."""
        return min(1.0, self.fact("full", "device_seconds") / self.run_seconds)

    @property
    def busy_alone_share(self) -> float:
        """Share of the time in which the device computes if its batches are already on it."""
        return min(1.0, self.fact("gpu", "device_seconds") * self.rate("gpu") / self.batch_size)

    @property
    def idle_seconds(self) -> float:
        """Seconds of a step in which the device did not compute."""
        return max(0.0, self.run_seconds - self.fact("full", "device_seconds"))

    @property
    def follows_stages(self) -> bool:
        """Whether the run is as fast as its slowest stage."""
        return self.measured_rate >= AGREES * self.expected_rate

    # Epochs that differ

    @property
    def first_touch_rate(self) -> float | None:
        """Rate of an epoch that reads each file for the first time: requests in flight / seconds of a first touch, at
        most the rate of later epochs. None if first touches were not measured."""
        if self.touches is None or not self.touches.first_seconds:
            return None
        in_flight = max(self.touches.in_flight, self.requests_in_flight)
        return min(in_flight * self.images_per_request / self.touches.first_seconds, self.measured_rate)

    @property
    def room(self) -> float:
        """Share of the data for which the local cache of a URL has room; 0 for a folder."""
        return 0.0 if self.setup.cache is None else self.setup.cache.room

    @property
    def whole_rate(self) -> float:
        """Rate of an epoch that finds all samples in the local cache."""
        if "full_warm" in self.ceilings:
            return max(self.measured_rate, self.rate("full_warm"))
        return max(self.measured_rate, min(self.rate("decode_all"), self.cpu_rate, self.fed_rate))

    @property
    def present_rate(self) -> float:
        """Rate of an epoch that begins with the present content of the local cache."""
        return self._rate_with_cache(self.cached_share)

    @property
    def later_rate(self) -> float:
        """Rate of the epochs after the first, when the local cache is as full as it gets."""
        return self._rate_with_cache(self.room)

    def _rate_with_cache(self, share: float) -> float:
        """Rate of an epoch with this share of the data in the local cache: the storage then delivers only the rest."""
        return self.whole_rate if share >= 1 else min(self.whole_rate, self.measured_rate / (1 - share))

    @property
    def asked_bytes(self) -> float:
        """Memory of the batches of all processes, with as many workers and batches ahead as the loader should have."""
        batches = self.setup.asked_workers * (self.setup.asked_prefetch + SPARE_BATCHES) * _LOADERS
        return self.setup.num_processes * batches * self.setup.batch_bytes

    @property
    def data_bytes(self) -> float:
        return self.mb_per_image * 1e6 * self.setup.num_samples

    @property
    def page_cache_bytes(self) -> float:
        """Memory that is left for the page cache while all processes of this machine train."""
        batches = self.setup.num_workers * (self.setup.prefetch_factor + SPARE_BATCHES) * self.setup.batch_bytes
        return max(0.0, self.host.available_memory - self.setup.num_processes * batches)

    @property
    def passes(self) -> bool:
        """Whether only the first epoch waits for a folder: memory keeps all files, and later epochs are faster."""
        fits = self.setup.cache is None and not self.left_out and self.page_cache_bytes >= self.data_bytes
        return self.is_cold and fits and self.measured_rate < SLOWER * self.whole_rate

    @property
    def is_lazy(self) -> bool | None:
        """Whether the mount fetches files from a remote store at their first touch; None if that is unknown."""
        if self.setup.cache is not None:
            return False
        if self.touches is not None and self.touches.lazy is not None:
            return self.touches.lazy
        return True if self.host.released_files else None

    @property
    def is_lazy_at_first(self) -> bool:
        """Whether the first epoch, which fetches files from a remote store, is slower than the measured run, which read
        files that had been fetched before."""
        first = self.first_touch_rate
        return self.is_cold and bool(self.is_lazy) and first is not None and first < SLOWER * self.measured_rate

    @property
    def is_cache_too_small(self) -> bool:
        """Whether the local cache of a URL has so little room that later epochs wait for the storage too."""
        is_partial = self.is_cold and self.setup.cache is not None and self.room < MOSTLY
        return is_partial and self.is_slow_reading and self.later_rate < SLOWER * self.whole_rate

    @property
    def is_cold_cache(self) -> bool:
        """Whether the present epoch waits for the storage of a URL, and later epochs will find the samples in the local
        cache."""
        is_slower = self.is_cold and self.setup.cache is not None and self.present_rate < SLOWER * self.later_rate
        return is_slower and self.is_slow_reading

    @property
    def rate_in_trouble(self) -> float:
        """Images per second while the cause lasts: of the first epoch if only the first epoch is slow, of later epochs
        if the local cache is too small, else of the run."""
        if self.is_cache_too_small:
            return self.later_rate
        if self.is_cold_cache:
            return self.present_rate
        first = self.first_touch_rate if self.is_lazy_at_first else None
        return first or self.measured_rate

    # What limits the run

    @property
    def is_starved(self) -> bool:
        """Whether missing batches explain the idle GPU: training waits for them, or is as slow as the loader alone."""
        beside = self.rate("gpu_beside_loader")
        follows = self.supply_rate < SLOWER * beside and self.measured_rate > SLOWER * self.supply_rate
        follows |= self.supply_rate < AGREES * beside and self.follows_stages
        return self.holds_up("fetch") or (follows and self.busy_share < BUSY_ENOUGH)

    @property
    def is_ample(self) -> bool:
        """Whether the loader is fast enough on average; never without workers, since training then waits for each
        batch."""
        return bool(self.setup.num_workers) and self.supply_rate >= AMPLE * self.rate("gpu_beside_loader")

    @property
    def _is_held_by_reads(self) -> bool:
        """Whether reading limits the loader: workers wait for files, and decoding alone would be faster."""
        read, decode = self.fact("loader", "read_seconds"), self.fact("loader", "decode_seconds")
        # A storage that reads faster alone may still make workers wait: each batch waits for its latest file, and a
        # short test of the storage may miss pauses of seconds.
        waits = read > MOSTLY_READS * (read + decode) or (read > decode and self.longest_gap_seconds >= STALL_SECONDS)
        is_late = waits or self.storage_rate_at_depth < NEAR * self.rate("loader")
        is_held = is_late and self.rate("loader") < SLOWER * self.rate("decode_all")
        if self.follows_stages and read > decode:  # then the loader is slow because of its reads, if not of its CPUs
            is_held |= self.rate("loader") < min(self.rate("decode_all"), self.cpu_rate)
        return self.is_starved and not self.is_ample and is_held

    @property
    def is_slow_reading(self) -> bool:
        return self._is_held_by_reads and self.storage_bound != "cpu"

    @property
    def is_reading_on_cpu(self) -> bool:
        """Whether reading limits the loader because it needs more CPU time, not faster storage."""
        return self._is_held_by_reads and self.storage_bound == "cpu"

    @property
    def is_short_of_cpu(self) -> bool:
        """Whether decoding is slower than the GPU, or the training process lacks CPU time."""
        lowest = min(self.rate("decode_all"), self.cpu_rate)
        is_slow = lowest < AMPLE * self.rate("gpu") or self.is_reading_on_cpu
        return (is_slow and self.is_starved and not self.is_ample and not self.is_slow_reading) or self.is_crowded

    @property
    def is_crowded(self) -> bool:
        """Whether the running loader slows down the GPU's steps."""
        is_slower = self.rate("gpu_beside_loader") < SLOWER * self.rate("gpu")
        return is_slower and self.busy_share < BUSY_ENOUGH and not self.is_slow_reading

    @property
    def is_slow_to_copy(self) -> bool:
        """Whether the copies slow down a device that never waits for the host."""
        return self.rate_with_copy(self.compute_rate) < SLOWER * self.compute_rate

    @property
    def has_neighbours(self) -> bool:
        """Whether processes outside this run use many of the CPUs."""
        return self.occupancy.others_cpus >= OTHERS_SHARE * self.host.usable_cpus

    @property
    def shares_gpu(self) -> bool:
        return bool(self.gpu and self.gpu.others)

    @property
    def longest_gap_seconds(self) -> float:
        """Longest time between two batches of the loader, in seconds."""
        return self.fact("loader", "longest_gap_seconds")

    def holds_up(self, phase: str) -> bool:
        """Whether this phase of the main process explains the idle GPU, and takes longer than any other phase."""
        seconds = self.phases.get(phase, 0.0)
        others = [other for name, other in self.phases.items() if name not in (phase, "step", "device")]
        share = seconds / self.idle_seconds if self.idle_seconds else 0.0
        return self.busy_share < BUSY_ENOUGH and share >= MAIN_SHARE and seconds > max(others, default=0.0)

    # Predicted gains: rate after the fix / measured rate. The next limit caps each gain.

    def loader_gain(self, rate: float) -> float:
        """Gain if the loader reaches `rate`, limited by the CPUs and the other stages."""
        return max(1.0, min(rate, self.cpu_rate, self.fed_rate) / self.measured_rate)

    @property
    def stages_gain(self) -> float:
        """Gain if the run reaches the rate that its stages allow."""
        return self.loader_gain(self.rate("loader"))

    @property
    def pack_gain(self) -> float | None:
        """Gain if packed images are decoded as fast as the doctor forecasts; None without a forecast."""
        if self.pack is None:
            return None
        speedup = self.pack.speedup
        supply = min(self.rate("loader") * speedup, self.cpu_rate_with(self.rate("decode_all") * speedup))
        return max(1.0, min(supply, self.fed_rate) / self.measured_rate)

    def gpu_gain(self, rate: float) -> float:
        """Gain if the GPU reaches `rate`, limited by the loader and the copy."""
        return max(1.0, min(self.rate_with_copy(rate), self.supply_rate) / self.measured_rate)

    @property
    def most_gain(self) -> float:
        """Gain with unlimited CPUs: the run then reaches the rate of the GPU alone."""
        return max(1.0, self.rate_with_copy(self.rate("gpu")) / self.measured_rate)

    @property
    def cpus_gain(self) -> float:
        """Gain with all CPUs of the machine."""
        return min(max(1.0, self.host.installed_cpus / self.host.usable_cpus), self.most_gain)

    @property
    def reading_gain(self) -> float:
        """Gain from files that are read as fast as from memory."""
        return self.loader_gain(self.rate("decode_all"))
