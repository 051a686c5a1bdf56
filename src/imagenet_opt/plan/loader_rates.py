"""Measures how fast this machine's loader delivers the images of each phase of a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from omegaconf import DictConfig

from imagenet_opt.config.build import set_size
from imagenet_opt.data.storage.cached_store import take_counts
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.plan.plan import LoaderRate
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Rows
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span

SECONDS = 5.0
"""Duration of a measurement, for each image size; below a URL with a cache, of each of two measurements."""
_LONGEST_SECONDS = 60.0
_FILL_SECONDS = 1.0
"""Seconds in which samples are brought into the cache, at least those of two batches."""
_BATCH = 256
"""Largest batch of a measurement; a few batches of each worker must fit into SECONDS."""
_BATCH_OF_URL = 64
"""Largest batch of single images below a URL, since each of them is a request that costs."""


@dataclass
class LoaderRates:
    """by_size: by image size. requests: GET requests of the measurement, about; num_bytes: what they read; kept_bytes:
    the part of num_bytes that is in the local cache now. All three are 0 for a folder."""

    by_size: dict[int, LoaderRate] = field(default_factory=dict)
    num_workers: int = 0
    requests: float = 0.0
    num_bytes: float = 0.0
    kept_bytes: int = 0


def measure_loader_rates(config: DictConfig, sizes: Iterable[int], announce: Callable[[str], None]) -> LoaderRates:
    """Rates of the loader alone, with files that are not in memory; below a URL past the local cache, and from the disk
    of the cache if there is one. What fills the cache stays there.

    announce: called with each measurement's description. Raises ConfigError if the data is too small to measure.
    """
    rates = LoaderRates()
    for size in sizes:
        announce(f"the loader at {size} px")
        at_size = config.copy()
        set_size(at_size, size)
        testbed = Testbed(at_size)
        samples = testbed.samples
        cached = None
        if isinstance(samples, RemoteSamples) and samples.cache_room > 0:
            cached = _from_cache(testbed, rates)
        rows = samples.cold_rows()
        storage = _load(testbed, rows, cold=True)
        rates.by_size[size] = LoaderRate(storage.images_per_second, cached)
        rates.num_workers = int(storage.facts["num_workers"])
        if isinstance(samples, RemoteSamples):
            _count_reads(testbed, storage, rows, rates)
    return rates


def _load(testbed: Testbed, rows: Rows, *, cold: bool) -> Ceiling:
    is_single = isinstance(testbed.samples, RemoteSamples) and testbed.loading.shuffle == "global"
    batch_size = min(_BATCH_OF_URL if is_single else _BATCH, testbed.loading.batch_size)
    span = Span(SECONDS, longest=_LONGEST_SECONDS)
    return testbed.load(testbed.samples.listed(rows), span, cold=cold, batch_size=batch_size)


def _from_cache(testbed: Testbed, rates: LoaderRates) -> float | None:
    """Images/s from the local cache; None if the samples that it should have did not get there."""
    samples = testbed.samples
    samples.warm(_FILL_SECONDS)
    fetched = take_counts(samples.store)
    rates.requests += fetched.misses
    rates.num_bytes += fetched.fetched_bytes
    rates.kept_bytes += fetched.fetched_bytes
    return _load(testbed, samples.warm_rows, cold=False).images_per_second if samples.kept().share == 1 else None


def _count_reads(testbed: Testbed, loaded: Ceiling, rows: Rows, rates: LoaderRates) -> None:
    """Add the requests and bytes of a measurement that read from the storage."""
    num_images, facts = loaded.facts["images_read"], loaded.facts
    few = rows[: testbed.loading.batch_size]
    rates.requests += num_images * len(testbed.samples.storage.groups(few)) / len(few) + facts["retries"]
    rates.num_bytes += num_images * facts["mb_read"] / facts["batch_size"] * 1e6
