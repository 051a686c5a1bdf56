"""Copies batches to the device while the device computes."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from imagenet_opt import private_api
from imagenet_opt.data.batch import AnyBatch, Batch, LoadStats
from imagenet_opt.data.batch_keys import BatchKeySampler
from imagenet_opt.data.batch_memory import SharedBufferPool
from imagenet_opt.data.budget import LoaderBudget
from imagenet_opt.data.device_copies import TOO_LARGE, BackgroundIterator, DeviceCopies, SentBatch
from imagenet_opt.data.loader_workers import end_workers, worker_errors
from imagenet_opt.data.order import check_fingerprint
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import CheckpointMismatch, ConfigError, TooManyBadSamples
from imagenet_opt.out_of_memory import explained

log = logging.getLogger(__name__)

_SHOWN = 3
_ALWAYS_ALLOWED = 3
"""Bad samples allowed with any fraction above 0, because the fraction of a small data set may be less than one."""
_TIMES = ("read_seconds", "decode_seconds", "cpu_wait_seconds")
_MEANS = (*_TIMES, "mb_read", "reads_in_flight", "queue_depth", "queue_seconds")
"""Metrics that are means over batches."""


@dataclass(kw_only=True)
class BadSamples:
    """Samples that one process skipped: index -> reason. Raises TooManyBadSamples past `max_fraction` of the data set.

    Each of `world_size` processes counts only the samples that it has read. A process reads another share of the
    data set in each epoch, so the allowed number grows until the process has read the whole data set.
    """

    num_samples: int
    max_fraction: float
    world_size: int = 1
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, skipped: tuple[tuple[int, str], ...], epoch: int) -> None:
        for index, reason in skipped:
            if index not in self.reasons:
                self.reasons[index] = reason
                log.warning(f"skipped: {reason}")
        num_read = self.num_samples * min(1.0, (epoch + 1) / self.world_size)
        allowed = max(_ALWAYS_ALLOWED, int(self.max_fraction * num_read)) if self.max_fraction else 0
        if (num := len(self.reasons)) > allowed:
            first = "; ".join(list(self.reasons.values())[:_SHOWN])
            more = f"; and {num - _SHOWN} more" if num > _SHOWN else ""
            raise TooManyBadSamples(
                f"{num} bad sample{'s' if num > 1 else ''}, and data.max_bad_fraction={self.max_fraction:g} allows "
                f"{allowed} of the {num_read:.0f} samples that this process has read: {first}{more}. The log names all "
                "of them (skipped: ...); fix the files, or raise data.max_bad_fraction"
            )


@dataclass(eq=False, repr=False)
class DevicePrefetcher:
    """Wraps a loader: pins the next batch and copies it on a side stream while the device computes with the current
    batch.

    Parts of a large batch are copied as they come, and joined on the device. `finish` then makes images of the batch on
    the compute stream. classes: names of the labels 0, 1, ... budget: the workers, and the memory that
    decided. The length is that of the whole epoch, also after a
    resume within it. Raises WorkerDied, with the likely cause, if a worker process is killed; OutOfMemory if the device
    has no room for a batch.
    """

    loader: "DataLoader[AnyBatch]"
    sampler: BatchKeySampler  # Lightning calls its set_epoch, and reads batch_sampler
    fingerprint: Mapping[str, int] = field(kw_only=True)
    batch_size: int = field(kw_only=True)
    copies: DeviceCopies = field(kw_only=True)
    finish: Callable[[AnyBatch], Batch] = field(kw_only=True)
    bad: BadSamples = field(kw_only=True)
    buffers: SharedBufferPool = field(kw_only=True)
    budget: LoaderBudget = field(kw_only=True)
    classes: tuple[str, ...] = ()
    batch_sampler: None = None
    _totals: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    _drained: dict[str, float] = field(default_factory=dict)
    _ahead: BackgroundIterator | None = None
    _iterations: int = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the epoch that `set_epoch` or `load_state_dict` has chosen; otherwise of the next epoch, or
        again of the same epoch if the last iteration left it early."""
        self._iterations += 1
        with worker_errors():
            yield from self._batches(self._iterations)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        order, num_workers = self.loader.dataset.order, self.num_workers  # type: ignore[attr-defined]
        rank = f"rank {order.rank} of {order.world_size}, " if order.world_size > 1 else ""
        return (
            f"<imagenet_opt.loader: {self.num_samples:,} images, {len(self.classes)} classes, {len(self)} batches of "
            f"{self.batch_size}, {num_workers} worker{'' if num_workers == 1 else 's'}, {rank}{self.copies.device}>"
        )

    @property
    def epoch(self) -> int:
        """The epoch of the last batch; after a whole epoch, the next epoch."""
        return self.sampler.position[0]

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin `epoch`, or continue in it where `load_state_dict` has left it. Raises
        ConfigError unless it is a whole number from 0."""
        self.sampler.set_epoch(epoch)

    @property
    def labels(self) -> NDArray[Any]:
        """The label of each image, in the order of the index: by class folder, then by name."""
        return self.loader.dataset.labels  # type: ignore[attr-defined, no-any-return]

    @property
    def device(self) -> torch.device:
        """Where the batches arrive."""
        return self.copies.device

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    def path(self, index: int) -> str:
        """Path or URL of an image. index: as in `batch.indices`."""
        return self.loader.dataset.reader.store.name(range(self.num_samples)[index])  # type: ignore[attr-defined, no-any-return]

    def state_dict(self) -> dict[str, int]:
        """The position after the batches delivered so far, and what decides the order of the samples. The state is the
        same in all processes and for any number of workers. It counts an epoch as finished when its loop has ended."""
        epoch, step = self.sampler.position
        return {"epoch": epoch, "step": step, **self.fingerprint}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Let the next iteration continue in `epoch`, after the batches that `state_dict` counts. Raises
        CheckpointMismatch for a state of other data, or of another seed, batch size or order."""
        check_fingerprint(state_dict, self.fingerprint, otherwise="do not load this state")
        try:
            self.sampler.seek(state_dict.get("epoch"), state_dict.get("step"))
        except ConfigError as error:
            raise CheckpointMismatch(f"{error}; load a state of state_dict()") from error

    def close(self) -> None:
        """End the thread and the workers, even if they wait for storage. The garbage collector would wait five
        seconds for each worker, because it destroys the worker's queue first."""
        if (iterator := private_api.persistent_iterator(self.loader)) is not None:
            end_workers(iterator, None if self._ahead is None else self._ahead.close)
            private_api.drop_persistent_iterator(self.loader)

    @property
    def num_workers(self) -> int:
        return self.loader.num_workers

    @property
    def prefetch_factor(self) -> int:
        """Batches that each worker makes ahead; 0 without workers."""
        return self.loader.prefetch_factor or 0

    @property
    def num_parts(self) -> int:
        """Parts of a batch, each of which one worker makes."""
        return self.sampler.num_parts

    @property
    def num_ready(self) -> int:
        """Number of finished batches that were not requested yet."""
        return self.buffers.num_ready // self.batch_size

    def totals(self) -> dict[str, float]:
        """Sums over all `batches` delivered so far, and `copy_seconds` over the `copies` that the device has made."""
        num_copies, seconds = self.copies.finished()
        return self._totals | {"copies": num_copies / self.num_parts, "copy_seconds": seconds}

    def pop_metrics(self) -> dict[str, float]:
        """Metrics of the batches delivered since the last call, by name; empty when there were none."""
        totals = self.totals()
        new = defaultdict(float, {name: total - self._drained.get(name, 0.0) for name, total in totals.items()})
        if not new["batches"]:
            return {}
        self._drained = totals
        metrics = {name: new[name] / new["batches"] for name in _MEANS}
        metrics |= {"retries": totals["retries"], "throttled": totals["throttled"], "skipped": len(self.bad.reasons)}
        if new["copies"]:
            metrics["copy_seconds"] = new["copy_seconds"] / new["copies"]
        if cached := new["cache_hits"] + new["cache_misses"]:
            metrics["cache_hit_percent"] = 100 * new["cache_hits"] / cached
            metrics["cache_damaged"] = totals["cache_damaged"]
        return {f"loader/{name}": float(value) for name, value in metrics.items()}

    def _batches(self, iteration: int) -> Iterator[Batch]:
        if self._ahead is not None:
            self._ahead.close()  # the last epoch may have ended early
        self.sampler.go_on()
        source = self._sent(iter(self.loader))
        if self.num_workers == 0:
            yield from self._delivered(source, iteration)
            return
        self._ahead = ahead = BackgroundIterator(source)
        try:
            yield from self._delivered(ahead, iteration)
        finally:
            ahead.stop()

    def _delivered(self, source: Iterator[list[SentBatch]], iteration: int) -> Iterator[Batch]:
        for parts in source:
            queue_depth = self.num_ready
            num_images = sum(len(part) for part, _ in parts)
            self.buffers.deliver(num_images)
            stats, key = LoadStats.of_parts([part.stats for part, _ in parts]), parts[0][0].key
            self.bad.add(stats.skipped, key.epoch)
            for note in stats.notes:
                tell_once(note, logging.WARNING)
            self._add(
                batches=1,
                mb_read=stats.num_bytes / 1e6,
                reads_in_flight=stats.reads_in_flight,
                queue_depth=queue_depth,
                queue_seconds=max(0.0, time.monotonic() - stats.made_at),
                **{name: getattr(stats, name) for name in _TIMES},
                **stats.events,
            )
            lease = parts[0][0].lease
            yield self._finished(parts)
            if iteration != self._iterations:
                raise RuntimeError(
                    "a later iteration of this loader has begun, so this one gets no more batches; end one before the "
                    "next, or make two loaders"
                )
            self.buffers.release(lease)
        self.sampler.position = self.sampler.position[0] + 1, 0

    def _sent(self, received: Iterator[AnyBatch]) -> Iterator[list[SentBatch]]:
        """The parts of each batch, on their way. Keeps no reference to a batch after its list."""
        self.copies.use_device()
        if self.num_workers > 0:
            self.copies.use_few_cpus()
        parts: list[SentBatch] = []
        for part in received:
            num_parts = part.key.num_parts
            parts.append(self.copies.send(part))
            del part
            if len(parts) == num_parts:
                yield parts
                parts = []

    def _finished(self, parts: list[SentBatch]) -> Batch:
        """The batch of these parts, which counts as delivered. Clears the list, to free the memory of the parts."""
        key = parts[0][0].key
        with explained(*TOO_LARGE):
            arrived = self.copies.arrived(parts)
            parts.clear()
            batch = self.finish(arrived)
        self.sampler.position = key.epoch, key.step + 1
        return batch

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._totals[name] += value
