"""Causes in the storage, in the local cache of a URL, and in the batches that the loader prepares ahead."""

import math

from imagenet_opt.doctor.environment import SMALL_MEMORY, SMALL_SHARED_MEMORY
from imagenet_opt.doctor.evidence import SLOWER, STALL_SECONDS, Evidence
from imagenet_opt.doctor.rule import (
    LOCAL_CACHE,
    Rule,
    Texts,
    data_place,
    smaller_pack,
)

_LEAST_THROTTLED = 0.01
"""Share of refused requests from which they count as a cause: our choice. Each costs a pause of a tenth of a second and
more."""
_LEAST_GAIN = 1.05
"""Least predicted gain for which the doctor advises to prefetch more batches."""
_OF_URLS = ("throttled", "cold_cache", "cache_too_small", "slow_cache")


def _deeper(e: Evidence) -> Texts:
    """The override for more requests in flight, if more requests were measured to be faster: the fastest number
    if data.reads_in_flight is "auto", else "auto"."""
    depth, rate = e.best_depth
    if SLOWER * rate <= e.storage_rate_at_depth:
        return ()
    number = math.ceil(depth / max(1, e.setup.num_workers))
    return (f"data.reads_in_flight={number if e.setup.reads_in_flight == 'auto' else 'auto'}",)


def _nearer(e: Evidence) -> str:
    return "copy the shards to a local disk" if e.setup.packed else "pack the data into shards on a local disk"


# Data below a URL


def _throttled_remedy(e: Evidence) -> str:
    remedy = (
        "keep fewer requests in flight, spread the objects over more prefixes, or ask the service for a higher limit"
    )
    remedy += "" if e.setup.packed else "; packed shards need fewer requests"
    return remedy + "; later epochs read from the local cache" * e.is_cold_cache


def _fewer_requests(e: Evidence) -> Texts:
    in_flight = e.requests_in_flight or 1.0
    depth = min(e.best_depth[0] or in_flight, in_flight / 2)
    return (f"data.reads_in_flight={max(1, math.floor(depth / max(1, e.setup.num_workers)))}",)


def _cold_cache_says(e: Evidence) -> str:
    has = f"the local cache has {e.cached_share:.0%} of the data and room for {e.room:.0%}"
    rates = f"about {e.present_rate:.0f} img/s; later epochs give about {e.later_rate:.0f}"
    return f"{has}: the first epoch reads from the storage, {rates}"


def _small_cache_says(e: Evidence) -> str:
    rates = f"about {e.later_rate:.0f} img/s, and {e.whole_rate:.0f} if all of it were kept"
    kept = e.setup.cache.evidence if e.setup.cache else "data.root is a folder"
    return f"{kept}, and each epoch reads what is not kept from the storage: {rates}"


def _small_cache_remedy(e: Evidence) -> str:
    raised = "raise data.cache_gb, or " * (e.configured("data.cache_gb") is not None)
    return f"{raised}put the cache on a larger local disk (data.cache_dir), or pack smaller images"


def _small_cache_commands(e: Evidence) -> Texts:
    is_limited = e.configured("data.cache_gb") is not None
    room = "data.cache_gb=null" if is_limited else f"data.cache_dir={LOCAL_CACHE}"
    return data_place(e).hydrate(room), data_place(e).pack("max_side=256")


_URL_RULES = (
    Rule(
        name="throttled",
        cause="Storage-bound: the service refuses requests, because it gets too many",
        when=lambda e: e.is_slow_reading and 0 < e.num_requests * _LEAST_THROTTLED <= e.num_refused,
        says=lambda e: (
            f"the service refused {e.num_refused:.0f} of {e.num_requests:.0f} requests as too many (429, 503), with "
            f"{e.requests_in_flight:.0f} in flight"
        ),
        remedy=_throttled_remedy,
        overrides=_fewer_requests,
        commands=lambda e: () if e.setup.packed else (data_place(e).pack(),),
    ),
    Rule(
        name="cache_too_small",
        cause="Storage-bound: the local cache has too little room for the data",
        when=lambda e: e.is_cache_too_small,
        says=_small_cache_says,
        remedy=_small_cache_remedy,
        commands=_small_cache_commands,
        gain=lambda e: e.whole_rate / e.later_rate,
        unless=("throttled",),
    ),
    Rule(
        name="cold_cache",
        cause="Storage-bound: the local cache is not filled yet",
        when=lambda e: e.is_cold_cache,
        says=_cold_cache_says,
        remedy=lambda e: (
            "this passes after the first epoch; to wait once instead of in each run, fill the cache before training"
            + "; more requests in flight fill it sooner" * bool(_deeper(e))
        ),
        overrides=_deeper,
        commands=lambda e: (data_place(e).hydrate(),),
        gain=lambda e: e.later_rate / e.present_rate,
        unless=("throttled", "cache_too_small"),
    ),
    Rule(
        name="slow_cache",
        cause="Storage-bound: the disk of the local cache is slow",
        when=lambda e: e.setup.cache is not None and not e.is_cold and e.is_slow_reading,
        says=lambda e: (
            f"the disk of the local cache gives {e.rate('storage') * e.mb_per_image:.0f} MB/s: "
            f"{e.rate('storage'):.0f} img/s"
        ),
        remedy="put the cache on a faster local disk, such as the NVMe disk of the machine (data.cache_dir)",
        commands=lambda e: (data_place(e).hydrate(f"data.cache_dir={LOCAL_CACHE}"),),
        gain=lambda e: e.reading_gain,
    ),
)


# Data in a folder


def _lazy_says(e: Evidence) -> str:
    text = f"{e.host.released_files} of {e.host.checked_files} checked files are released"
    if e.touches is not None and e.touches.lazy is not None:
        first_ms, second_ms = 1000 * e.touches.first_seconds, 1000 * e.touches.second_seconds
        text = f"files take {first_ms:.0f} ms at the first read, {second_ms:.0f} ms at the second"
    if e.is_lazy_at_first:
        text += f": the first epoch gives about {e.first_touch_rate:.0f} img/s, later epochs {e.measured_rate:.0f}"
    return text


def _later(e: Evidence) -> str:
    """The rates of the epochs, if later epochs read from memory."""
    rates = f"the first epoch gives about {e.measured_rate:.0f} img/s, later ones {e.whole_rate:.0f}"
    return f"; memory keeps all files, so {rates}" if e.passes else ""


def _first(e: Evidence, remedy: str) -> str:
    """The remedy; of a cause that passes, first that it passes."""
    passes = "this passes after the first epoch; to wait once before training, hydrate"
    return f"{passes}; or {remedy}" if e.passes else remedy


def _hydrate(e: Evidence) -> Texts:
    return (data_place(e).hydrate(),) if e.passes else ()


def _reading_gain(e: Evidence, rate: float) -> float:
    return e.whole_rate / e.measured_rate if e.passes else e.loader_gain(rate)


def _bandwidth_remedy(e: Evidence) -> str:
    measured = f" ({e.pack.bytes_ratio:.2f} of the bytes, measured with some images)" if e.pack else ""
    return _first(e, f"pack smaller images{measured}, or {_nearer(e)}")


def _latency_says(e: Evidence) -> str:
    text = (
        f"files arrive {1000 * e.latency_seconds:.0f} ms after their request, with {e.requests_in_flight:.0f} requests"
    )
    text += f" in flight: {e.rate('loader'):.0f} img/s"
    if e.longest_gap_seconds >= STALL_SECONDS:
        text += f", with pauses of up to {e.longest_gap_seconds:.1f} s"
    return text + _later(e)


def _latency_gain(e: Evidence) -> float:
    rate = e.rate("decode_all")
    return _reading_gain(e, min(rate, e.best_depth[1]) if _deeper(e) else rate)


def _is_slow_folder(e: Evidence) -> bool:
    return e.is_slow_reading and not e.is_lazy


_FOLDER_RULES = (
    Rule(
        name="lazy_mount",
        cause="Storage-bound: the mount fetches each file from a remote store at first touch",
        unknown=lambda e: (
            f"could not be checked: {e.touches.evidence if e.touches else 'no file was read twice'}"
            * (e.is_lazy is None)
        ),
        when=lambda e: bool(e.is_lazy) and (e.is_lazy_at_first or e.is_slow_reading),
        says=_lazy_says,
        remedy=lambda e: f"fetch every file once before training, or {_nearer(e)}",
        commands=lambda e: (data_place(e).hydrate(), data_place(e).pack()),
        gain=lambda e: e.measured_rate / e.rate_in_trouble if e.is_lazy_at_first else e.reading_gain,
    ),
    Rule(
        name="storage_bandwidth",
        cause="Storage-bound: storage gives too few MB/s",
        when=lambda e: _is_slow_folder(e) and e.storage_bound == "bandwidth",
        says=lambda e: (
            f"storage gives {e.rate('storage') * e.mb_per_image:.0f} MB/s, and more requests in flight bring no more: "
            f"{e.rate('storage'):.0f} img/s{_later(e)}"
        ),
        remedy=_bandwidth_remedy,
        commands=lambda e: (*_hydrate(e), smaller_pack(e), *((data_place(e).pack(),) if e.setup.packed else ())),
        gain=lambda e: _reading_gain(e, e.rate("decode_all")),
        unless=_OF_URLS,
    ),
    Rule(
        name="storage_latency",
        cause="Storage-bound: storage answers late",
        when=lambda e: _is_slow_folder(e) and e.storage_bound != "bandwidth",
        says=_latency_says,
        remedy=lambda e: _first(e, "keep more requests in flight, or " * bool(_deeper(e)) + _nearer(e)),
        overrides=_deeper,
        commands=lambda e: (*_hydrate(e), data_place(e).pack()),
        gain=_latency_gain,
        unless=_OF_URLS,
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
        in_run=True,
        when=_pauses,
        says=lambda e: (
            f"the loader gives {e.rate('loader'):.0f} img/s on average, with pauses of up to "
            f"{1000 * e.longest_gap_seconds:.0f} ms; each worker prepares {e.setup.prefetch_factor} batches ahead"
        ),
        remedy="prepare more batches ahead",
        overrides=_enough_ahead,
        gain=lambda e: e.stages_gain,
        unless=("little_memory",),
    ),
)

STORAGE_RULES = (*_URL_RULES, *_FOLDER_RULES, *_BATCH_RULES)
