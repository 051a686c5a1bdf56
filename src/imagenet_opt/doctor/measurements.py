"""What the doctor measured: frozen records, which doctor.json holds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from imagenet_opt.doctor.first_look import Host, Setup
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.limit import StorageLimit
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


NEEDS = ("gpu", "gpu_beside_loader", "loader", "decode_all", "storage", "full")
"""Ceilings that every verdict needs, named as in `Evidence.stage`."""
SLOWER = 0.8  # a stage with less than this share of another stage's rate is slower; a smaller difference is noise


@dataclass(frozen=True)
class Touches:
    """Median seconds of the first and the second read of files. lazy: whether the mount fetches files from a remote
    store at their first read; None if that is unknown. in_flight: requests of all workers when an epoch begins."""

    first_seconds: float
    second_seconds: float
    lazy: bool | None
    in_flight: int
    evidence: str


@dataclass(frozen=True)
class PackForecast:
    """What packing gives. option: of `imagenet-opt pack`, such as "for=224". speedup: images/s that a worker decodes
    from packed images / from the originals. bytes_ratio: bytes packed / bytes of the originals."""

    option: str
    speedup: float
    bytes_ratio: float


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measurements. Rates in images per second of one process, times in seconds.

    simulated: name of the simulated device's profile; None on real hardware. ceilings: keys of STAGES. limits: what
    limits the reads of a stage, "storage_cold" or "storage_cached". curves: points (x, y) by name: "workers" (workers,
    images/s decoded from memory), "reads_in_flight" (requests in flight, images/s read cold). mb_per_image, megapixels:
    means of some images. images_per_request: of a request to the storage. others_cpus: CPUs that processes outside this
    run used. touches, pack, gpu: None if the experiment failed or does not apply. left_out: why the stages with files
    in memory are left out; "" if they are not. unverified: why files that were to be read from storage may have been in
    memory. no_kernels: why the profiler recorded no kernel of the GPU. failed: experiment -> reason. phases: seconds of
    a step of the full run that the main process spent in "fetch", "logging", "checkpoint", "step", "callback NAME", ...
    step_seconds: each step of the full run. waits_per_step, waits: how often the host waits for the GPU in an ordinary
    step of the full run, and the most frequent places, as "item at mine.py:7". config: the configuration
    without secrets.
    """

    simulated: str | None
    batch_size: int
    setup: Setup
    host: Host
    mb_per_image: float
    megapixels: float
    images_per_request: float = 1.0
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)
    limits: Mapping[str, StorageLimit] = field(default_factory=dict)
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
        names = dict(STAGES)
        if self.setup.cache is not None:
            in_cache = ("loader_warm", "storage_cached", "full_warm")
            names |= {key: STAGES[key].replace("files in memory", "samples in the local cache") for key in in_cache}
        if self.setup.has_gpu or self.simulated is not None:
            return names
        return {key: name.replace("GPU", "CPU") for key, name in names.items()}

    @property
    def not_measured(self) -> str:
        """The experiments that failed, by reason."""
        reasons = dict.fromkeys(self.failed.values())
        by_reason = {why: "; ".join(name for name, other in self.failed.items() if other == why) for why in reasons}
        return ". ".join(f"{reason} ({names})" for reason, names in by_reason.items())

    def known(self) -> dict[str, float | str]:
        """Further measurements by name, for tables."""
        parts = (self.setup, self.touches, self.pack)
        plain = [asdict(part) for part in parts if part is not None]
        own = {
            name: getattr(self, name)
            for name in ("mb_per_image", "megapixels", "others_cpus", "left_out", "unverified")
        }
        known = {name: value for part in (*plain, own) for name, value in part.items()}
        return {name: value for name, value in known.items() if isinstance(value, int | float | str) and value != ""}

    # Rates of stages

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

    @property
    def lacks(self) -> list[str]:
        """The stages of NEEDS that were not measured."""
        return [stage for stage in map(self.stage, NEEDS) if stage not in self.ceilings]

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

    @property
    def requests_in_flight(self) -> float:
        """Mean number of requests of all workers together in flight."""
        return self.fact("loader", "reads_in_flight") * max(1.0, self.fact("loader", "num_workers"))

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
