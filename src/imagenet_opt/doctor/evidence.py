"""The rates, times and shares that follow from what the doctor measured."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imagenet_opt.doctor.diagnosis import Diagnosis, Finding, Measurements
from imagenet_opt.doctor.facts import Facts
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.page_cache import MOSTLY

BUSY_ENOUGH = 0.9
"""A run is healthy if the accelerator computes this share of the time, which MLPerf Storage asks for with ResNet-50."""
SLOWER = 0.8
"""A stage with less than this share of another stage's rate is slower; a smaller difference is noise."""
NEARLY_ALL = 0.9
"""The fewest requests in flight that reach this share of the storage's highest rate are enough."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the rules read. Rates in images per second. environment: findings that needed no experiment."""

    measurements: Measurements
    environment: tuple[Finding, ...] = ()

    @property
    def ceilings(self) -> Mapping[str, Ceiling]:
        return self.measurements.ceilings

    @property
    def facts(self) -> Facts:
        return self.measurements.facts

    @property
    def device(self) -> str:
        """What computes, for sentences: "the GPU", "the CPU" or "the simulated A10G"."""
        if self.measurements.simulated:
            return f"the simulated {self.measurements.simulated}"
        return "the GPU" if self.facts.has_gpu else "the CPU"

    @property
    def is_cold(self) -> bool:
        """Whether some of the data was not in the page cache (of a URL: in the local cache), and the run is judged by
        reads from storage; if this is unknown, the data counts as not cached. Always if recently read files are not
        read from memory."""
        if self.facts.kept_in_memory is False:
            return True
        share = self.facts.cached_share or 0.0
        return share < MOSTLY and not self._is_served(share)

    def _is_served(self, share: float) -> bool:
        """Whether a run with this share of the data in its local cache is as fast as a run with all of the data there,
        because the storage delivers the rest in time."""
        if not share or self.facts.cache_room is None or not {"full_cold", "full_warm"} <= self.ceilings.keys():
            return False
        cold, warm = (self.ceilings[f"full_{state}"].images_per_second for state in ("cold", "warm"))
        return cold / (1 - share) >= SLOWER * warm

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

    def rate(self, name: str) -> float:
        """Images per second of a ceiling, named as in `stage`."""
        return self.ceilings[self.stage(name)].images_per_second

    def configured(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the configuration; the default if the configuration has no such key."""
        node: Any = self.measurements.config
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node

    @property
    def longest_gap_seconds(self) -> float:
        """Longest time between two batches of the loader, in seconds."""
        return self.ceilings[self.stage("loader")].facts.get("longest_gap_seconds", 0.0)

    @property
    def storage_rate_at_depth(self) -> float:
        """Rate of the storage with as many requests in flight as the loader has, interpolated between the measured
        rates."""
        points = self._depths
        if not self.is_cold or not points:
            return self.rate("storage")
        depths, rates = np.log(np.array(points)).T
        return float(np.exp(np.interp(np.log(max(1.0, self.facts.requests_in_flight or 0.0)), depths, rates)))

    @property
    def _depths(self) -> list[tuple[float, float]]:
        """(requests in flight, rate) of each measurement in which the storage answered in time."""
        return [(depth, rate) for depth, rate in self.measurements.curves.get("reads_in_flight", ()) if rate > 0]

    @property
    def best_depth(self) -> tuple[float, float]:
        """(requests in flight, rate): the fewest requests in flight that reach nearly the storage's highest rate."""
        most = max((rate for _, rate in self._depths), default=0.0)
        return next((point for point in sorted(self._depths) if point[1] >= NEARLY_ALL * most), (0.0, 0.0))

    @property
    def copy_rate(self) -> float:
        """Rate of the copy to the device; infinite if nothing is copied."""
        return self.rate(self.copy_stage) if self.copy_stage in self.ceilings else float("inf")

    @property
    def copy_stage(self) -> str:
        """Key of the copy's rate while the device computes; if that rate was not measured, of the copy alone."""
        return "copy_overlapped" if "copy_overlapped" in self.ceilings else "copy"

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
        return self.measurements.batch_size / self._device_seconds("gpu")

    @property
    def first_epoch_rate(self) -> float | None:
        """Rate of an epoch that reads each file for the first time: requests in flight / seconds of a first touch, at
        most the rate of later epochs. None if first touches were not measured."""
        facts = self.facts
        if not facts.first_touch_seconds or facts.first_requests_in_flight is None:
            return None
        in_flight = max(facts.first_requests_in_flight, facts.requests_in_flight or 0.0)
        images = in_flight * (facts.images_per_request or 1.0)
        return min(images / facts.first_touch_seconds, self.measured_rate)

    @property
    def measured_rate(self) -> float:
        return self.rate("full")

    @property
    def whole_rate(self) -> float:
        """Rate of an epoch that finds all samples in the local cache."""
        if "full_warm" in self.ceilings:
            return max(self.measured_rate, self.rate("full_warm"))
        return max(self.measured_rate, min(self.rate("decode_all"), self.cpu_rate, self.fed_rate))

    @property
    def present_rate(self) -> float:
        """Rate of an epoch that begins with the present content of the local cache."""
        return self._rate_with_cache(self.facts.cached_share or 0.0)

    @property
    def later_rate(self) -> float:
        """Rate of the epochs after the first, when the local cache is as full as it gets."""
        return self._rate_with_cache(self.facts.cache_room or 0.0)

    def _rate_with_cache(self, share: float) -> float:
        """Rate of an epoch with this share of the data in the local cache: the storage then delivers only the rest."""
        return self.whole_rate if share >= 1 else min(self.whole_rate, self.measured_rate / (1 - share))

    @property
    def cpu_rate(self) -> float:
        """Rate at which the loader and the training process together use all usable CPUs."""
        return self.cpu_rate_with(self.rate("decode_all"))

    def cpu_rate_with(self, decode_rate: float) -> float:
        """`cpu_rate` if all workers together decoded `decode_rate` images per second."""
        workers = min(max(1, self.facts.num_workers), self.facts.usable_cpus)
        cpu_seconds = (self.facts.main_cpu_seconds or 0.0) / self.measurements.batch_size + workers / decode_rate
        return self.facts.usable_cpus / cpu_seconds

    @property
    def supply_rate(self) -> float:
        """Rate at which batches can arrive while the training process also uses a CPU."""
        return min(self.rate("loader"), self.cpu_rate)

    @property
    def expected_rate(self) -> float:
        if not self.facts.num_workers:  # loading and computing alternate
            return 1 / (1 / self.rate("gpu") + 1 / self.rate("loader"))
        return min(self.fed_rate, self.supply_rate)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step of the full run."""
        return self.measurements.batch_size / self.measured_rate

    @property
    def busy_share(self) -> float:
        """Share of the full run in which the device computed."""
        return min(1.0, self._device_seconds("full") / self.step_seconds)

    @property
    def idle_seconds(self) -> float:
        """Seconds of a step in which the device did not compute."""
        return max(0.0, self.step_seconds - self._device_seconds("full"))

    @property
    def busy_alone_share(self) -> float:
        """Share of the time in which the device computes if its batches are already on it."""
        return min(1.0, self._device_seconds("gpu") * self.rate("gpu") / self.measurements.batch_size)

    def _device_seconds(self, name: str) -> float:
        """Seconds of a step in which the device computes."""
        return self.ceilings[self.stage(name)].facts["device_seconds"]


def evidence_of(diagnosis: Diagnosis) -> Evidence:
    """The evidence of a diagnosis, from which `judge` makes the same diagnosis."""
    environment = tuple(finding for finding in diagnosis.findings if finding.environment)
    return Evidence(measurements=diagnosis.measurements, environment=environment)
