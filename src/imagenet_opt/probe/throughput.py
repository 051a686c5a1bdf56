"""Measures images per second of a loader, a copy or a fit."""

import time
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rate import LEAST_ROUNDS, Ceiling, has_few_pauses, rate_windows, too_slow
from imagenet_opt.probe.ahead import batches_per_round, images_ahead
from imagenet_opt.probe.fit_timer import FitTiming

SLOWEST = 4.0
"""An experiment with enough batches for a rate takes at most this many times its planned seconds."""

MOST_TAKEN = 1.05
"""A fit that uses batches up to this many times as fast as they are made counts as fast as it is, and so does a loader
that uses files up to this many times as fast as they are read: our choice, since both scatter."""


@dataclass(frozen=True)
class Span:
    """Duration of an experiment in seconds. longest: when to stop with too few batches for a rate; 0 for `limit`."""

    seconds: float
    longest: float = 0.0

    @property
    def limit(self) -> float:
        """When to stop with enough batches for a rate, but fewer than planned."""
        return SLOWEST * self.seconds

    @property
    def last(self) -> float:
        return max(self.limit, self.longest)


@dataclass
class MadeBatches:
    """Delivered batches, without the first batches of each worker.

    per_round: batches that arrive together, see batches_per_round. made_at: seconds at which a batch and all batches
    before it were made. delivered_at: seconds at which a batch had been requested and was available. num_read: samples
    that workers had read when they finished a batch, of later batches too.
    """

    per_round: int
    made_at: list[float] = field(default_factory=list)
    delivered_at: list[float] = field(default_factory=list)
    num_read: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, batch: Batch | RaggedBatch, now: float, num_read: float) -> None:
        self.made_at.append(max([batch.stats.made_at, *self.made_at[-1:]]))
        self.delivered_at.append(now)
        self.num_read.append(num_read)
        self.sizes.append(len(batch))

    @property
    def seconds(self) -> float:
        return self.made_at[-1] - self.made_at[0]

    @property
    def num_images(self) -> int:
        """Number of images made within `seconds`."""
        return sum(self.sizes[1:])

    def rates(self, *, ahead: bool) -> tuple[float, ...]:
        """Images per second in several windows. ahead: whether workers read many files ahead. If batches used such
        files faster than workers read new ones, the rate of reading counts: in a long run, none are left."""
        rates = rate_windows(self.made_at, self.sizes, multiple=self.per_round)
        share = (self.num_read[-1] - self.num_read[0]) / self.num_images
        return tuple(share * rate for rate in rates) if ahead and 0 < share * MOST_TAKEN < 1 else rates

    @property
    def has_rounds(self) -> bool:
        """Whether each worker made enough batches for a rate; all workers finish a batch at about the same time."""
        return len(self.sizes) - 1 >= LEAST_ROUNDS * self.per_round

    def is_over(self, span: Span, since: float, ahead: int) -> bool:
        """Whether to stop. since: start of the loader. ahead: images that may be in preparation."""
        least = max(3 * self.per_round * self.sizes[-1], 3 * ahead)
        enough = self.seconds >= span.seconds and self.num_images >= least
        if enough and self.has_rounds and not has_few_pauses(self.delivered_at):
            return True
        passed = self.delivered_at[-1] - since
        return passed > span.last or (passed > span.limit and self.has_rounds)


SKIPPED_ROUNDS, SKIPPED_ROUNDS_COLD = 1, 3
"""Batches of each worker that do not count: the slower first batch, and from storage also the batches whose files were
read while the worker made the first batch."""


def drain(loader: DevicePrefetcher, span: Span, *, skipped_rounds: int = SKIPPED_ROUNDS) -> Ceiling:
    """Measure how fast a loader delivers batches with no other work; then close the loader.

    A batch counts when its worker has made it, since prefetched batches arrive at once and do not show the rate. Raises
    ConfigError for too few batches.
    """
    made = MadeBatches(batches_per_round(max(1, loader.num_workers), loader.num_parts))
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    began = time.perf_counter()
    try:
        for number, batch in enumerate(loader):
            if number < skipped_rounds * made.per_round:
                loader.pop_metrics()
                continue
            made.add(batch, time.perf_counter(), loader.totals().get("num_read", 0.0))
            if made.is_over(span, began, images_ahead(batch, loader)):
                break
        facts = {name.removeprefix("loader/"): value for name, value in loader.pop_metrics().items()}
    finally:
        loader.close()
    if not made.has_rounds:
        reads = facts.get("read_seconds", 0.0) >= facts.get("decode_seconds", 0.0)
        needed = (skipped_rounds + LEAST_ROUNDS) * made.per_round + 1
        num, size = skipped_rounds * made.per_round + len(made.sizes), made.sizes[0] if made.sizes else 0
        seconds, stage = time.perf_counter() - began, "storage" if reads else "decoding"
        raise ConfigError(too_slow(stage, num_batches=num, batch_size=size, seconds=seconds, needed=needed))
    facts |= {"num_workers": float(loader.num_workers), "batch_size": float(made.sizes[0])}
    facts |= {"longest_gap_seconds": max(end - begin for begin, end in pairwise(made.delivered_at))}
    return Ceiling(made.rates(ahead=facts.get("reads_in_flight", 0.0) > 1), facts, in_bursts=True)


def timed_copy(batch: Batch | RaggedBatch, device: torch.device, span: Span) -> Ceiling:
    """Time copies of a batch from pinned memory, one after the other."""
    pinned, stamps = batch.pin_memory(), [0.0]
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    while stamps[-1] < span.seconds:
        pinned.to(device, non_blocking=True)
        torch.cuda.synchronize(device)
        stamps.append(time.perf_counter() - began)
    return Ceiling(rate_windows(stamps, [len(batch)] * len(stamps)), {"batch_mb": batch.data.nbytes / 1e6})


def fit_ceiling(timing: FitTiming, *, multiple: int = 1, in_bursts: bool = False) -> Ceiling:
    """The rate of a fit. multiple: number of batches that arrive at once.

    If the fit used batches faster than the workers made them, the rate at which the workers made them counts, as in
    `drain`: in a long run no prefetched batches are left.
    """
    rates = rate_windows(timing.stamps, timing.num_images, multiple=multiple)
    whole = (len(timing.made_at) - 1) // multiple * multiple
    if whole > 0:
        passed, made = (each[-1] - each[-1 - whole] for each in (timing.stamps, timing.made_at))
        share = passed / made if made > MOST_TAKEN * passed else 1.0
        rates = tuple(share * rate for rate in rates)
    facts = {"device_seconds": timing.device_seconds, "num_steps": float(len(timing.step_seconds))}
    return Ceiling(rates, facts, in_bursts)
