"""The rates, limits and gains that follow from the measurements; the rules read nothing else."""

import math
from dataclasses import dataclass

import numpy as np

from imagenet_opt.doctor.measurements import SLOWER, Measurements
from imagenet_opt.measure.storage.page_cache import MOSTLY

BUSY_ENOUGH = 0.9
"""A run is healthy if the accelerator computes this share of the time, which MLPerf Storage asks for with ResNet-50."""
AGREES = 0.9
"""A run with this share of the expected rate is as fast as its stages; faster than 1 / AGREES contradicts them."""
_NEARLY_ALL = 0.9  # the fewest requests in flight that reach this share of the storage's highest rate are enough
NEAR = 1.5  # a storage slower than this many times the loader's rate limits the loader; both rates vary in bursts
_MAIN_SHARE = 0.4  # a phase of the main process is a cause only if it fills this share of the GPU's idle time
AMPLE = 1.1  # a loader faster than this many times the GPU's rate is fast enough
MOSTLY_READS = 0.8
"""Above this share of a worker's time, its waits for files limit it, whatever the storage can do alone."""
STALL_SECONDS = 1.0
"""A pause of this length between two batches is a stall of the storage, not the latency of a single request."""
ORDINARY_WAITS = 0.5  # ordinary steps wait for the GPU if there are at least this many waits per step
_OTHERS_SHARE = 0.2
"""Above this share of the usable CPUs, other processes use more than the usual background work of a system."""
SPARE_BATCHES = 3  # batches of a worker in addition to the batches ahead: one being made, one being sent, one in use


@dataclass(frozen=True, kw_only=True)
class Evidence(Measurements):
    """Measurements and what follows from them. Rates in images per second, shares 0 to 1."""

    # Rates of stages

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
        return next((point for point in sorted(self._depths) if point[1] >= _NEARLY_ALL * most), (0.0, 0.0))

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

    @property
    def follows_stages(self) -> bool:
        """Whether the run is as fast as its slowest stage."""
        return self.measured_rate >= AGREES * self.expected_rate

    # Epochs that differ

    @property
    def epochs(self) -> tuple[float, float]:
        """Rates of the first epoch and of later ones, which differ only if reading limits the first one."""
        measured, touched = self.measured_rate, self._first_touch_rate
        if self.is_cold and self.setup.cache is not None and self.is_slow_reading:
            return self._rate_with_cache(self.cached_share), self._rate_with_cache(self.setup.cache.room)
        if self.is_cold and self.is_lazy and touched < SLOWER * measured:  # the run read files that were fetched before
            return touched, measured
        fits = self.setup.cache is None and not self.left_out and self.page_cache_bytes >= self.data_bytes
        return measured, self.whole_rate if self.is_cold and self.is_slow_reading and fits else measured

    @property
    def is_slow_at_first(self) -> bool:
        return self.epochs[0] < SLOWER * self.epochs[1]

    @property
    def rate_in_trouble(self) -> float:
        """Images per second while the cause lasts: of the first epoch if only the first epoch is slow, of later epochs
        if the local cache is too small, else of the run."""
        if self.is_cache_too_small:
            return self.epochs[1]
        return self.epochs[0] if self.is_slow_at_first else self.measured_rate

    @property
    def _first_touch_rate(self) -> float:
        """Rate of an epoch that reads each file for the first time: requests in flight / seconds of a first touch;
        infinite if first touches were not measured."""
        if self.touches is None or not self.touches.first_seconds:
            return math.inf
        in_flight = max(self.touches.in_flight, self.requests_in_flight)
        return in_flight * self.images_per_request / self.touches.first_seconds

    @property
    def whole_rate(self) -> float:
        """Rate of an epoch that finds all samples in memory or in the local cache."""
        if "full_warm" in self.ceilings:
            return max(self.measured_rate, self.rate("full_warm"))
        return max(self.measured_rate, min(self.rate("decode_all"), self.cpu_rate, self.fed_rate))

    def _rate_with_cache(self, share: float) -> float:
        """Rate of an epoch with this share of the data in the local cache: the storage then delivers only the rest."""
        return self.whole_rate if share >= 1 else min(self.whole_rate, self.measured_rate / (1 - share))

    @property
    def data_bytes(self) -> float:
        return self.mb_per_image * 1e6 * self.setup.num_samples

    @property
    def page_cache_bytes(self) -> float:
        """Memory that is left for the page cache while all processes of this machine train."""
        batches = self.setup.num_workers * (self.setup.prefetch_factor + SPARE_BATCHES) * self.setup.batch_bytes
        return max(0.0, self.host.available_memory - self.setup.num_processes * batches)

    @property
    def is_lazy(self) -> bool | None:
        """Whether the mount fetches files from a remote store at their first touch; None if that is unknown."""
        if self.setup.cache is not None:
            return False
        if self.touches is not None and self.touches.lazy is not None:
            return self.touches.lazy
        return True if self.host.released_files else None

    @property
    def is_cache_too_small(self) -> bool:
        """Whether the local cache of a URL has so little room that later epochs wait for the storage too."""
        cache = self.setup.cache
        is_partial = cache is not None and cache.room < MOSTLY and self.is_cold and self.is_slow_reading
        return is_partial and self.epochs[1] < SLOWER * self.whole_rate

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
    def has_neighbours(self) -> bool:
        """Whether processes outside this run use many of the CPUs."""
        return self.others_cpus >= _OTHERS_SHARE * self.host.usable_cpus

    @property
    def longest_gap_seconds(self) -> float:
        """Longest time between two batches of the loader, in seconds."""
        return self.fact("loader", "longest_gap_seconds")

    def holds_up(self, phase: str) -> bool:
        """Whether this phase of the main process explains the idle GPU, and takes longer than any other phase."""
        seconds = self.phases.get(phase, 0.0)
        others = [other for name, other in self.phases.items() if name not in (phase, "step", "device")]
        share = seconds / self.idle_seconds if self.idle_seconds else 0.0
        return self.busy_share < BUSY_ENOUGH and share >= _MAIN_SHARE and seconds > max(others, default=0.0)

    # Predicted gains: rate after the fix / measured rate. The next limit caps each gain.

    def loader_gain(self, rate: float) -> float:
        """Gain if the loader reaches `rate`, limited by the CPUs and the other stages."""
        return max(1.0, min(rate, self.cpu_rate, self.fed_rate) / self.measured_rate)

    @property
    def stages_gain(self) -> float:
        """Gain if the run reaches the rate that its stages allow."""
        return self.loader_gain(self.rate("loader"))

    def gpu_gain(self, rate: float) -> float:
        """Gain if the GPU reaches `rate`, limited by the loader and the copy."""
        return max(1.0, min(self.rate_with_copy(rate), self.supply_rate) / self.measured_rate)

    @property
    def most_gain(self) -> float:
        """Gain with unlimited CPUs: the run then reaches the rate of the GPU alone."""
        return max(1.0, self.rate_with_copy(self.rate("gpu")) / self.measured_rate)

    @property
    def reading_gain(self) -> float:
        """Gain from files that are read as fast as from memory."""
        return self.loader_gain(self.rate("decode_all"))
