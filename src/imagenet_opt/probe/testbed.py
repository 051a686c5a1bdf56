"""A training setup to measure each stage of the pipeline alone, and all stages together."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import Callback
from omegaconf import DictConfig, open_dict

from imagenet_opt import machine
from imagenet_opt.config.build import (
    at_one_size,
    build_model,
    build_trainer,
    device_of,
    make,
    num_classes_of,
    num_processes,
    precision_of,
    share_batch,
    smallest_size,
)
from imagenet_opt.config.speed import recorded_rate, settle_acceleration
from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.batch_memory import slot_bytes
from imagenet_opt.data.budget import LoaderBudget
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.loader import RankInfo, image_dtype, train_loader
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.storage.store import MemoryStore, Store
from imagenet_opt.display.progress import print_once
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, Ceiling, too_slow
from imagenet_opt.probe.ahead import batches_per_round
from imagenet_opt.probe.fit_timer import FitTimer, FitTiming
from imagenet_opt.probe.memory import NoHalving
from imagenet_opt.probe.remote_samples import samples_of
from imagenet_opt.probe.resident_loader import ResidentLoader, take_one
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS, SKIPPED_ROUNDS_COLD, Span, drain, fit_ceiling, timed_copy
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.loggers.run_logger import offline, run_loggers

_MOST_SECONDS = 60.0
"""Longest wait of a full run for enough batches of each worker; a few slow steps may exceed the requested time."""
_ALONE = ("acceleration", "mixing", "rehearsal")
"""Callbacks that are part of the GPU's work."""


class Testbed:
    """Data, loader, network and trainer of a configuration, for measurements in one process and at one image size.

    config: a copy of the given configuration with one image size and the number of classes. compared: whether the rates
    are compared with the rates of other configurations; then measurements that slow down only some configurations are
    left out, and lack of memory ends a fit. seed: see `Samples`. A line on stderr reports any difference between a real
    run and the measurements.

    Raises ImagenetOptError for mistakes that the user can fix.
    """

    __test__ = False  # else pytest collects the class because of its name

    def __init__(self, config: DictConfig, *, compared: bool = False, seed: int | None = None) -> None:
        self.config = config = config.copy()
        self.compared = compared
        at_one_size(config)
        num = num_processes(config, self.device)[1]
        share_batch(config, num)
        if num != 1:
            share = "measured with one, with its share of this machine's CPUs and memory"
            print_once(f"{num} processes (trainer.devices): {share}; imagenet-opt study study=scaling has several")
        self.data: ImageData = make(config.data, "data")
        with open_dict(config):
            config.model.num_classes = num_classes_of(config.model.num_classes, self.data.num_classes)
        settle_acceleration(config, len(self.data.train), self.device)
        self.loading = self.data.loading
        self.samples = samples_of(self.data.train, self.loading, seed=seed)

    @cached_property
    def device(self) -> torch.device:
        return device_of(self.config)

    @cached_property
    def rank_info(self) -> RankInfo:
        """The place of one process; the others take their share of the CPUs and of the memory."""
        precision = precision_of(self.config.trainer.precision, self.device, smallest_size(self.config))
        local, everywhere = num_processes(self.config, self.device)
        sharing = machine.sharing_cpus(local_processes=local, world_size=everywhere)
        dtype = image_dtype(precision, self.device)
        return RankInfo(device=self.device, dtype=dtype, local_processes=local, sharing_cpus=sharing)

    @property
    def simulated(self) -> Any:
        """Configuration of the simulated accelerator, if any."""
        return self.config.callbacks.get("rehearsal")

    @property
    def rated(self) -> float | None:
        """Images per second of a healthy device of this kind with this network, image size and settings, if known."""
        if (rehearsal := self.simulated) is not None:
            rate = rehearsal.get("rated_images_per_second") or rehearsal.images_per_second
        elif self.device.type == "cuda":
            rate = recorded_rate(torch.cuda.get_device_name(self.device), self.config)
        else:
            rate = None
        return None if rate is None else float(rate) * (224 / self.loading.image_size) ** 2

    def loader(self, index: Split, store: Store, **changes: Any) -> DevicePrefetcher:
        """changes: fields of LoaderOptions."""
        return train_loader(index, replace(self.loading, samples_per_epoch=None, **changes), self.rank_info, store)

    def from_memory(self, **changes: Any) -> DevicePrefetcher:
        """A loader that decodes files from memory."""
        index = self.samples.in_memory
        return self.loader(index, MemoryStore(self.samples.encoded, len(index)), **changes)

    def decode(self, span: Span, **changes: Any) -> Ceiling:
        """Stage D: decode files from memory into batches on the device."""
        return drain(self.from_memory(**changes), span)

    def load(self, index: Split, span: Span, *, cold: bool, **changes: Any) -> Ceiling:
        """Stages B and C: the loader alone. cold: whether reads go to storage."""
        loader = self.loader(index, self.samples.store_for(index, cold=cold), **changes)
        return drain(loader, span, skipped_rounds=SKIPPED_ROUNDS_COLD if cold else SKIPPED_ROUNDS)

    def compute(self, span: Span, *, beside: bool, from_files: bool = True) -> FitTiming:
        """Stages A and A': the device alone, or while the loader runs (beside). from_files: whether the loader beside
        it reads files."""
        samples, source, other = self.samples, self.from_memory(num_workers=0), None
        if beside and from_files:
            index = samples.listed(samples.warm_rows)
            other = self.loader(index, samples.store_for(index, cold=False))
        elif beside:
            other = self.from_memory()
        resident = ResidentLoader(take_one(source), finish=source.finish, beside=other)
        try:
            timing = self._fit(only(self.config, callbacks=_ALONE), resident, span)
            timing.copy_seconds = None if other is None else other.pop_metrics().get("loader/copy_seconds")
            return timing
        finally:
            resident.close()
            if other is not None:
                other.close()

    def train(self, index: Split, span: Span, *, cold: bool) -> FitTiming:
        """Stage G: all stages together. cold: see `load`. Raises ConfigError if no rate could be
        measured."""
        loading = replace(self.loading, samples_per_epoch=None)
        if self.rank_info.local_processes > 1:  # the run has one process, which would take all CPUs and memory
            loading = replace(loading, num_workers=self.num_workers, prefetch_factor=max(1, self.prefetch_factor))
        store = self.samples.store_for(index, cold=cold)
        return self._fit(self.config, ImageData(index, self.data.val, loading, store), span)

    def full_run(self, seconds: float, *, cold: bool) -> tuple[FitTiming, float]:
        """Timing and images per second of one run of all stages together. cold: whether to evict files from the page
        cache first."""
        samples = self.samples
        if not cold and not len(samples.warm_rows):
            samples.warm(seconds)
        rows = samples.cold_rows() if cold else samples.warm_rows
        timing = self.train(samples.listed(rows), Span(seconds, longest=_MOST_SECONDS), cold=cold)
        return timing, fit_ceiling(timing, multiple=self.batches_per_round, in_bursts=True).images_per_second

    def _fit(self, config: DictConfig, data: Any, span: Span) -> FitTiming:
        timer = FitTimer(
            seconds=span.seconds,
            limit_seconds=span.limit,
            longest_seconds=span.last,
            multiple=self.batches_per_round,
            sees_kernels=isinstance(data, ResidentLoader) and not self.compared,
            sees_waits=not self.compared,
        )
        self.train_until(timer, data, config)
        timing = timer.timing
        if not timing.phases:
            raise ConfigError(
                f"{len(self.samples.index)} images are too few to measure in batches of {self.loading.batch_size}; "
                "lower data.batch_size, or examine a larger data.root"
            )
        if not timing.has_rate:
            num, seconds = len(timing.step_seconds), timing.stamps[-1] - timing.stamps[0]
            needed, size = LEAST_ROUNDS * self.batches_per_round, self.loading.batch_size
            raise ConfigError(too_slow("storage", num_batches=num, batch_size=size, seconds=seconds, needed=needed))
        return timing

    def train_until(
        self, callback: Callback, data: Any, config: DictConfig, trainer: Mapping[str, Any] | None = None
    ) -> None:
        """Train until `callback` ends the training. trainer: see `run_folder`."""
        with run_folder(config, trainer=trainer) as config, offline():
            built = build_trainer(config)
            built.callbacks.extend([callback, *([NoHalving()] if self.compared else [])])  # type: ignore[attr-defined]
            model = build_model(config, global_batch=self.loading.batch_size * built.world_size)
            try:
                built.fit(model, data, weights_only=True)
            finally:
                for logger in run_loggers(built):
                    logger.finish(exit_code=0)

    def copy(self, span: Span) -> Ceiling | None:
        """Stage F: copies of a batch from pinned memory to the GPU; None without a GPU."""
        if self.simulated is not None:
            seconds = self._sample.data.nbytes / (self.simulated.copy_gb_per_second * 1e9)
            return Ceiling((self.loading.batch_size / seconds,), {"batch_mb": self._sample.data.nbytes / 1e6})
        if self.device.type != "cuda":
            return None
        return timed_copy(self._sample, self.device, span)

    @cached_property
    def _sample(self) -> Batch | RaggedBatch:
        """One batch in the form that a worker sends."""
        rank_info = replace(self.rank_info, device=torch.device("cpu"))
        on_device = self.loading.resize_on == "device" or (
            self.loading.resize_on == "auto" and self.device.type == "cuda"
        )
        resize_on = "device" if on_device else "worker"
        loading = replace(self.loading, samples_per_epoch=None, num_workers=0, resize_on=resize_on)
        index = self.samples.in_memory
        return take_one(train_loader(index, loading, rank_info, MemoryStore(self.samples.encoded, len(index))))

    @property
    def batch_bytes(self) -> float:
        """Bytes of a batch in shared memory; for a large batch, of the part that one worker makes."""
        return float(slot_bytes(self._sample.data.nbytes // self._fitted.num_parts))

    @property
    def budget(self) -> LoaderBudget:
        """Workers and batches ahead after the loader has adapted them to the machine."""
        return self._fitted.budget

    @property
    def num_workers(self) -> int:
        return self.budget.num_workers

    @property
    def prefetch_factor(self) -> int:
        return self.budget.prefetch_factor if self.num_workers else 0

    @property
    def batches_per_round(self) -> int:
        """Batches that arrive together, see ahead.batches_per_round."""
        return batches_per_round(self.num_workers, self._fitted.num_parts)

    @cached_property
    def _fitted(self) -> DevicePrefetcher:
        self.samples.read_few()
        return self.from_memory()
