"""Causes in the storage, in the local cache of a URL, and in the batches that the loader prepares ahead."""

import math

from imagenet_opt.doctor.environment import SMALL_MEMORY, SMALL_SHARED_MEMORY
from imagenet_opt.doctor.evidence import STALL_SECONDS, Evidence
from imagenet_opt.doctor.measurements import SLOWER
from imagenet_opt.doctor.rule import LOCAL_CACHE, Rule, Texts, hydrate, pack, smaller_pack

_LEAST_THROTTLED = 0.01
"""Share of refused requests from which they count as a cause: our choice. Each costs a pause of a tenth of a second and
more."""
_LEAST_GAIN = 1.05
"""Least predicted gain for which the doctor advises to prefetch more batches."""


def _deeper(e: Evidence) -> Texts:
    """The override for more requests in flight, if more requests were measured to be faster: the fastest number
    if data.reads_in_flight is "auto", else "auto"."""
    depth, rate = e.best_depth
    if SLOWER * rate <= e.storage_rate_at_depth:
        return ()
    number = math.ceil(depth / max(1, e.setup.num_workers))
    return (f"data.reads_in_flight={number if e.setup.reads_in_flight == 'auto' else 'auto'}",)


def _passes(e: Evidence, otherwise: str) -> str:
    """The remedy; of a cause that passes after the first epoch, first that it passes."""
    once = "this passes after the first epoch; to wait once, instead of in each run, hydrate before training; or "
    return once * e.is_slow_at_first + otherwise


def _epochs(e: Evidence) -> str:
    rates = f"the first epoch gives about {e.epochs[0]:.0f} img/s, later ones {e.epochs[1]:.0f}"
    return f"; {rates}" if e.is_slow_at_first else ""


def _gain(e: Evidence, rate: float | None = None) -> float:
    """Gain if files are read at `rate`, by default as fast as from memory, as later epochs may do by themselves."""
    if e.is_slow_at_first:
        return e.epochs[1] / e.epochs[0]
    return e.reading_gain if rate is None else e.loader_gain(rate)


# Data below a URL


def _fewer_requests(e: Evidence) -> Texts:
    in_flight = e.requests_in_flight or 1.0
    depth = min(e.best_depth[0] or in_flight, in_flight / 2)
    return (f"data.reads_in_flight={max(1, math.floor(depth / max(1, e.setup.num_workers)))}",)


def _small_cache_commands(e: Evidence) -> Texts:
    is_limited = e.configured("data.cache_gb") is not None
    room = "data.cache_gb=null" if is_limited else f"data.cache_dir={LOCAL_CACHE}"
    return hydrate(e, room), pack(e, "max_side=256")


_URL_RULES = (
    Rule(
        name="throttled",
        cause="Storage-bound: the service refuses requests, because it gets too many",
        when=lambda e: (
            e.is_slow_reading and 0 < e.fact("loader", "requests") * _LEAST_THROTTLED <= e.fact("loader", "throttled")
        ),
        says=lambda e: (
            f"the service refused {e.fact('loader', 'throttled'):.0f} of {e.fact('loader', 'requests'):.0f} requests "
            f"as too many (429, 503), with {e.requests_in_flight:.0f} in flight"
        ),
        remedy="keep fewer requests in flight, spread the objects over more prefixes, ask the service for a higher "
        "limit, or pack: shards need fewer requests",
        overrides=_fewer_requests,
        commands=lambda e: () if e.setup.packed else (pack(e),),
    ),
    Rule(
        name="cache_too_small",
        cause="Storage-bound: the local cache has too little room for the data",
        when=lambda e: e.is_cache_too_small,
        says=lambda e: (
            f"{e.setup.cache.evidence if e.setup.cache else 'data.root is a folder'}, and each epoch reads the rest "
            f"from the storage: about {e.epochs[1]:.0f} img/s, and {e.whole_rate:.0f} if all of it were kept"
        ),
        remedy="raise data.cache_gb, put the cache on a larger local disk (data.cache_dir), or pack smaller images",
        commands=_small_cache_commands,
        gain=lambda e: e.whole_rate / e.epochs[1],
    ),
    Rule(
        name="cold_cache",
        cause="Storage-bound: the local cache is not filled yet",
        when=lambda e: e.setup.cache is not None and e.is_cold and e.is_slow_reading and e.is_slow_at_first,
        says=lambda e: (
            f"the local cache has {e.cached_share:.0%} of the data and room for "
            f"{e.setup.cache.room if e.setup.cache else 0:.0%}{_epochs(e)}"
        ),
        remedy=lambda e: (
            "this passes after the first epoch; to wait once instead of in each run, fill the cache before training"
            + "; more requests in flight fill it sooner" * bool(_deeper(e))
        ),
        overrides=_deeper,
        commands=lambda e: (hydrate(e),),
        gain=_gain,
    ),
)

# Data in a folder, or in a full local cache


def _nearer(e: Evidence) -> str:
    return "copy the shards to a local disk" if e.setup.packed else "pack the data into shards on a local disk"


def _lazy_says(e: Evidence) -> str:
    text = f"{e.host.released_files} of {e.host.checked_files} checked files are released"
    if e.touches is not None and e.touches.lazy is not None:
        first_ms, second_ms = 1000 * e.touches.first_seconds, 1000 * e.touches.second_seconds
        text = f"files take {first_ms:.0f} ms at the first read, {second_ms:.0f} ms at the second"
    return text + _epochs(e)


def _hydrate(e: Evidence) -> Texts:
    return (hydrate(e),) if e.is_slow_at_first else ()


def _bandwidth_remedy(e: Evidence) -> str:
    measured = f" ({e.pack.bytes_ratio:.2f} of the bytes, measured with some images)" if e.pack else ""
    return _passes(e, f"pack smaller images{measured}, or {_nearer(e)}")


def _latency_says(e: Evidence) -> str:
    limit = e.limits.get(e.stage("storage"))
    seconds = limit.latency if limit else e.fact("storage", "latency_median")
    text = f"files arrive {1000 * seconds:.0f} ms after their request, with {e.requests_in_flight:.0f} requests"
    text += f" in flight: {e.rate('loader'):.0f} img/s"
    if e.longest_gap_seconds >= STALL_SECONDS:
        text += f", with pauses of up to {e.longest_gap_seconds:.1f} s"
    return text + _epochs(e)


_FOLDER_RULES = (
    Rule(
        name="lazy_mount",
        cause="Storage-bound: the mount fetches each file from a remote store at first touch",
        unknown=lambda e: (
            f"could not be checked: {e.touches.evidence if e.touches else 'no file was read twice'}"
            * (e.is_lazy is None)
        ),
        when=lambda e: bool(e.is_lazy) and (e.is_slow_at_first or e.is_slow_reading),
        says=_lazy_says,
        remedy=lambda e: f"fetch every file once before training, or {_nearer(e)}",
        commands=lambda e: (hydrate(e), pack(e)),
        gain=_gain,
    ),
    Rule(
        name="storage_bandwidth",
        cause="Storage-bound: storage gives too few MB/s",
        when=lambda e: e.is_slow_reading and e.storage_bound == "bandwidth",
        says=lambda e: (
            f"storage gives {e.rate('storage') * e.mb_per_image:.0f} MB/s, and more requests in flight bring no more: "
            f"{e.rate('storage'):.0f} img/s{_epochs(e)}"
        ),
        remedy=_bandwidth_remedy,
        commands=lambda e: (*_hydrate(e), smaller_pack(e), *((pack(e),) if e.setup.packed else ())),
        gain=_gain,
    ),
    Rule(
        name="storage_latency",
        cause="Storage-bound: storage answers late",
        when=lambda e: e.is_slow_reading,
        says=_latency_says,
        remedy=lambda e: _passes(e, "keep more requests in flight, or " * bool(_deeper(e)) + _nearer(e)),
        overrides=_deeper,
        commands=lambda e: (*_hydrate(e), pack(e)),
        gain=lambda e: _gain(e, min(e.rate("decode_all"), e.best_depth[1]) if _deeper(e) else None),
    ),
)

# Batches ahead


def _pauses(e: Evidence) -> bool:
    """Whether the loader is fast enough on average, but batches come late."""
    is_enough = e.is_ample or (not e.is_slow_reading and not e.is_short_of_cpu)
    helps = bool(e.setup.prefetch_factor) and e.stages_gain >= _LEAST_GAIN
    return e.is_starved and is_enough and helps and not e.is_crowded


def _is_cut(e: Evidence) -> bool:
    """Whether the loader has less than it was asked for, for lack of memory, and the run needs it."""
    needs_workers = e.setup.num_workers < e.setup.asked_workers and e.is_short_of_cpu
    return e.setup.lacks_memory and (needs_workers or _pauses(e))


def _memory(e: Evidence) -> Rule:
    """The check of the memory that the loader lacks."""
    return SMALL_SHARED_MEMORY if SMALL_SHARED_MEMORY.when(e) else SMALL_MEMORY


def _enough_ahead(e: Evidence) -> Texts:
    gap_steps = 1.5 * e.longest_gap_seconds / e.run_seconds
    enough = max(4 * e.setup.prefetch_factor, math.ceil(gap_steps / max(1, e.setup.num_workers)))
    return (f"data.prefetch_factor={enough}",)


_BATCH_RULES = (
    Rule(
        name="little_memory",
        cause="Loader-bound: memory allows fewer workers or batches ahead than the loader should have",
        when=_is_cut,
        says=lambda e: f"{_memory(e).says(e)}, which give {e.rate('loader'):.0f} img/s",
        remedy=lambda e: str(_memory(e).remedy),
        commands=lambda e: _memory(e).commands(e),
    ),
    Rule(
        name="small_prefetch",
        cause="Loader-bound: too few batches are prepared ahead",
        when=_pauses,
        says=lambda e: (
            f"the loader gives {e.rate('loader'):.0f} img/s on average, with pauses of up to "
            f"{1000 * e.longest_gap_seconds:.0f} ms; each worker prepares {e.setup.prefetch_factor} batches ahead"
        ),
        remedy="prepare more batches ahead",
        overrides=_enough_ahead,
        gain=lambda e: e.stages_gain,
    ),
)

STORAGE_RULES = (*_URL_RULES, *_FOLDER_RULES, *_BATCH_RULES)
