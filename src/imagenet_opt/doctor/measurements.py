"""The measurements of a run, by experiment, and the state of its files in which the run is judged."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from imagenet_opt.data.budget import SPARE_BATCHES
from imagenet_opt.doctor.first_look import Host, Setup
from imagenet_opt.doctor.first_touch import Touches
from imagenet_opt.doctor.pack_forecast import PackForecast
from imagenet_opt.doctor.thresholds import SLOWER
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
"""Ceilings that every verdict needs, named as in `Measurements.stage`."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
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

    @cached_property
    def stages(self) -> dict[str, str]:
        """Key of each experiment -> its displayed name."""
        device = "GPU" if self.setup.has_gpu or self.simulated is not None else "CPU"
        kept = "files in memory" if self.setup.cache_room is None else "samples in the local cache"
        return {key: name.replace("GPU", device).replace("files in memory", kept) for key, name in STAGES.items()}

    @cached_property
    def device(self) -> str:
        """What computes, for sentences: "the GPU", "the CPU" or "the simulated A10G"."""
        if self.simulated:
            return f"the simulated {self.simulated}"
        return "the GPU" if self.setup.has_gpu else "the CPU"

    @cached_property
    def data_bytes(self) -> float:
        return self.mb_per_image * 1e6 * self.setup.num_samples

    @cached_property
    def page_cache_bytes(self) -> float:
        """Memory that is left for the page cache while all processes of this machine train."""
        setup = self.setup
        batches = setup.num_workers * (setup.prefetch_factor + SPARE_BATCHES) * setup.batch_bytes
        return max(0.0, self.host.available_memory - setup.num_processes * batches)

    @cached_property
    def keeps_files(self) -> bool:
        """Whether memory keeps all files of a folder once they were read."""
        return self.setup.cache_room is None and not self.left_out and self.page_cache_bytes >= self.data_bytes

    @cached_property
    def hits(self) -> float:
        """Share of the reads of the next epoch that find their sample in the page cache (of a URL: in the local cache).

        A page cache without room for all files drops the pages that were used least recently, so that an epoch in
        random order finds only share + (1 - share) ln(1 - share) of its files.
        """
        share = 0.0 if self.left_out else self.setup.cached_share or 0.0
        if self.keeps_files or self.setup.cache_room is not None or not 0 < share < 1:
            return share
        return share + (1 - share) * math.log(1 - share)

    @cached_property
    def is_cold(self) -> bool:
        """Whether the run is judged by reads from storage: some of the data was not in the page cache (of a URL: in the
        local cache), or recently read files are not read from memory. Not if the storage delivers the missing part in
        time, so that the run is as fast as with all of the data there."""
        if self.left_out or (self.setup.cached_share or 0.0) >= MOSTLY:
            return bool(self.left_out)
        if not self.hits or not {"full_cold", "full_warm"} <= self.ceilings.keys():
            return True
        cold, warm = (self.ceilings[f"full_{state}"].images_per_second for state in ("cold", "warm"))
        return cold / (1 - self.hits) < SLOWER * warm

    def stage(self, name: str) -> str:
        """Key of a ceiling. "loader", "storage" and "full" stand for the ceilings of the state (cold or warm) by which
        the run is judged."""
        if name == "storage":
            return "storage_cold" if self.is_cold else "storage_cached"
        return f"{name}_{'cold' if self.is_cold else 'warm'}" if name in ("loader", "full") else name

    @cached_property
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
