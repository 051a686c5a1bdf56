"""The measurements of a run, and what follows from them: rates, limits, waits. The rules read nothing else."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imagenet_opt.doctor.first_look import Host, PackForecast, Setup, Touches
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.page_cache import MOSTLY
from imagenet_opt.measure.telemetry.gpu import GpuState

STAGES = {
    "gpu": "GPU, batch resident",
    "gpu_beside_loader": "GPU, while the loader runs",
    "loader_warm": "loader, files in memory",
    "loader_cold": "loader, files on storage",
    "decode_one": "decode from memory, 1 worker",
    "decode_all": "decode from memory, all workers",
    "storage_cached": "read, files in memory",
    "storage_cold": "read, files on storage",
    "copy": "copy to the GPU",
    "copy_overlapped": "copy to the GPU while it computes",
    "full_warm": "full run, files in memory",
    "full_cold": "full run, files on storage",
}
"""Key of each experiment -> its displayed name, with files and a GPU."""
_NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "storage", "full")
"""Ceilings that every verdict needs, named as in `Evidence.stage`."""
SLOWER = 0.8  # a stage with less than this share of another stage's rate is slower; a smaller difference is noise
BUSY_ENOUGH = 0.9
"""A run is healthy if the accelerator computes this share of the time, which MLPerf Storage asks for with ResNet-50."""
AGREES = 0.9
"""A run with this share of the expected rate is as fast as its stages; faster than 1 / AGREES contradicts them."""
_NEAR = 1.5  # a storage slower than this many times the loader's rate limits the loader; both rates vary in bursts
_MAIN_SHARE = 0.4  # a phase of the main process is a cause only if it fills this share of the GPU's idle time
AMPLE = 1.1  # a loader faster than this many times the GPU's rate is fast enough
_MOSTLY_READS = 0.8  # above this share of a worker's time, its waits for files limit it, whatever the storage can do
STALL_SECONDS = 1.0
"""A pause of this length between two batches is a stall of the storage, not the latency of a single request."""
_SATURATED = 2.0  # a rate is saturated at this many times the needed requests in flight; half of them then only wait
_BUSY_CPUS = 0.8  # a reading process that keeps so many CPUs busy is the limit: one Python thread runs at a time


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Rates in images per second of one process, times in seconds, shares 0 to 1. doctor.json holds the fields.

    simulated: name of the simulated device's profile; None on real hardware. ceilings: keys of STAGES. curves: points
    (x, y) by name: "workers" (workers, images/s decoded from memory), "reads_in_flight" (requests in flight, images/s
    read cold). mb_per_image: mean of some images. images_per_request: of a request to the storage. others_cpus: CPUs
    that processes outside this run used. touches, pack, gpu: None if the experiment failed or does not apply. left_out:
    why the stages with files in memory are left out; "" if they are not. unverified: why files that were to be read
    from storage may have been in memory. no_kernels: why the profiler recorded no kernel of the GPU. failed: experiment
    -> reason. phases: seconds of a step of the full run that the main process spent in "fetch", "logging",
    "checkpoint", "step", "callback NAME", ... step_seconds: each step of the full run. waits_per_step, waits: how often
    the host waits for the GPU in an ordinary step of the full run, and the most frequent places, as "item at
    mine.py:7". config: the configuration without secrets.
    """

    simulated: str | None
    batch_size: int
    setup: Setup
    host: Host
    mb_per_image: float
    images_per_request: float = 1.0
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    others_cpus: float = 0.0
    touches: Touches | None = None
    pack: PackForecast | None = None
    gpu: GpuState | None = None
    left_out: str = ""
    unverified: str = ""
    no_kernels: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    step_seconds: tuple[float, ...] = ()
    waits_per_step: float = 0.0
    waits: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    date: str = ""

    @property
    def stages(self) -> dict[str, str]:
        """Key of each experiment -> its displayed name."""
        device = "GPU" if self.setup.has_gpu or self.simulated is not None else "CPU"
        kept = "files in memory" if self.setup.cache_room is None else "samples in the local cache"
        return {key: name.replace("GPU", device).replace("files in memory", kept) for key, name in STAGES.items()}

    @property
    def device(self) -> str:
        """What computes, for sentences: "the GPU", "the CPU" or "the simulated A10G"."""
        if self.simulated:
            return f"the simulated {self.simulated}"
        return "the GPU" if self.setup.has_gpu else "the CPU"

    @property
    def is_cold(self) -> bool:
        """Whether the run is judged by reads from storage: some of the data was not in the page cache (of a URL: in the
        local cache), or recently read files are not read from memory. Not if the storage delivers what the local cache
        lacks in time, so that the run is as fast as with all of the data there."""
        share = self.setup.cached_share or 0.0
        if self.left_out or share >= MOSTLY:
            return bool(self.left_out)
        if not share or self.setup.cache_room is None or not {"full_cold", "full_warm"} <= self.ceilings.keys():
            return True
        cold, warm = (self.ceilings[f"full_{state}"].images_per_second for state in ("cold", "warm"))
        return cold / (1 - share) < SLOWER * warm

    def stage(self, name: str) -> str:
        """Key of a ceiling. "loader", "storage" and "full" stand for the ceilings of the state (cold or warm) by which
        the run is judged."""
        if name == "storage":
            return "storage_cold" if self.is_cold else "storage_cached"
        return f"{name}_{'cold' if self.is_cold else 'warm'}" if name in ("loader", "full") else name

    @property
    def lacks(self) -> list[str]:
        """The stages that every verdict needs and that were not measured."""
        return [stage for stage in map(self.stage, _NEEDS) if stage not in self.ceilings]

    def configured(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the configuration; the default if the configuration has no such key."""
        node: Any = self.config
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node

    def rate(self, name: str) -> float:
        """Images per second of a ceiling, named as in `stage`."""
        return self.ceilings[self.stage(name)].images_per_second

    def fact(self, name: str, fact: str) -> float:
        """A further measurement of a ceiling; 0 if it is missing."""
        return self.ceilings[self.stage(name)].facts.get(fact, 0.0)

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
    def idle_seconds(self) -> float:
        """Seconds of a step in which the device did not compute."""
        return max(0.0, self.run_seconds - self.fact("full", "device_seconds"))

    def holds_up(self, phase: str) -> bool:
        """Whether this phase of the main process explains the idle GPU, and takes longer than any other phase."""
        seconds = self.phases.get(phase, 0.0)
        others = [other for name, other in self.phases.items() if name not in (phase, "step", "device")]
        share = seconds / self.idle_seconds if self.idle_seconds else 0.0
        return self.busy_share < BUSY_ENOUGH and share >= _MAIN_SHARE and seconds > max(others, default=0.0)

    # Rates that the stages allow

    @property
    def copy_rate(self) -> float:
        """Rate of the copy to the device, while it computes if that was measured; infinite if nothing is copied."""
        copy = self.ceilings.get("copy_overlapped", self.ceilings.get("copy"))
        return copy.images_per_second if copy else math.inf

    @property
    def fed_rate(self) -> float:
        """Rate of the device while the loader runs and batches are copied."""
        return min(self.rate("gpu_beside_loader"), self.copy_rate)

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

    def loader_gain(self, rate: float) -> float:
        """Predicted rate / measured rate if the loader reaches `rate`, limited by the CPUs and the other stages."""
        return max(1.0, min(rate, self.cpu_rate, self.fed_rate) / self.measured_rate)

    # Waits for data

    @property
    def requests_in_flight(self) -> float:
        """Mean number of requests of all workers together in flight."""
        return self.fact("loader", "reads_in_flight") * max(1.0, self.fact("loader", "num_workers"))

    @property
    def depths(self) -> list[tuple[float, float]]:
        """(requests in flight, images/s read cold) of each measurement in which the storage answered in time."""
        return [(depth, rate) for depth, rate in self.curves.get("reads_in_flight", ()) if rate > 0]

    @property
    def storage_rate_at_depth(self) -> float:
        """Rate of the storage with as many requests in flight as the loader has, interpolated between the measured
        rates."""
        if not self.is_cold or not self.depths:
            return self.rate("storage")
        depths, rates = np.log(np.array(self.depths)).T
        return float(np.exp(np.interp(np.log(max(1.0, self.requests_in_flight)), depths, rates)))

    @property
    def storage_bound(self) -> str:
        """What bounds the loader's reads: "latency", "bandwidth", or "cpu" if this process cannot read faster.

        Requests in flight are requests/s times latency (Little's law). So the rate grows with the requests in flight up
        to the knee, the number that is needed for the highest rate; then only the latency grows. The knee is the least
        of all measurements, as a stall makes one slower, never faster. A storage that gives much more than the loader
        takes has bandwidth left.
        """
        is_busy = self.fact("storage", "cpus") >= _BUSY_CPUS
        if not self.is_cold:  # files are in memory, or samples on the disk of the local cache
            return "cpu" if is_busy or self.setup.cache_room is None else "bandwidth"
        most = max((rate for _, rate in self.depths), default=math.inf)
        knee = min((depth * most / rate for depth, rate in self.depths), default=math.inf)
        is_saturated = max((depth for depth, _ in self.depths), default=0.0) >= _SATURATED * knee
        if not is_saturated or self.requests_in_flight < knee:
            return "latency"
        if is_busy:
            return "cpu"
        return "latency" if self.rate("loader") < SLOWER * most else "bandwidth"

    @property
    def longest_gap_seconds(self) -> float:
        """Longest time between two batches of the loader, in seconds."""
        return self.fact("loader", "longest_gap_seconds")

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
    def is_slow_reading(self) -> bool:
        """Whether the storage limits the loader, and not the CPU time that reading takes."""
        return self.is_held_by_reads and self.storage_bound != "cpu"

    @property
    def is_held_by_reads(self) -> bool:
        """Whether reading limits the loader: workers wait for files, and decoding alone would be faster."""
        read, decode = self.fact("loader", "read_seconds"), self.fact("loader", "decode_seconds")
        # A storage that reads faster alone may still make workers wait: each batch waits for its latest file, and a
        # short test of the storage may miss pauses of seconds.
        waits = read > _MOSTLY_READS * (read + decode) or (read > decode and self.longest_gap_seconds >= STALL_SECONDS)
        is_late = waits or self.storage_rate_at_depth < _NEAR * self.rate("loader")
        is_held = is_late and self.rate("loader") < SLOWER * self.rate("decode_all")
        if self.follows_stages and read > decode:  # then the loader is slow because of its reads, if not of its CPUs
            is_held |= self.rate("loader") < min(self.rate("decode_all"), self.cpu_rate)
        return self.is_starved and not self.is_ample and is_held
