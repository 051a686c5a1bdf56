"""Causes in the storage, and in the local cache of a URL."""

import math

from imagenet_opt.doctor.commands import Texts, hydrate, pack, smaller_pack
from imagenet_opt.doctor.evidence import Evidence, Reach
from imagenet_opt.doctor.rule import Rule
from imagenet_opt.doctor.thresholds import LEAST_THROTTLED, NEAR, NEARLY_ALL, SLOWER, STALL_SECONDS
from imagenet_opt.measure.storage.page_cache import MOSTLY

# Epochs that differ


def _epochs(e: Evidence) -> tuple[float, float]:
    """Rates of the first epoch and of later ones, which differ only if reading limits the first one."""
    measured = e.measured_rate
    touched = _touch_rate(e, max(e.touches.in_flight if e.touches else 0, e.requests_in_flight))
    if e.is_cold and _is_lazy(e) and touched < SLOWER * measured:  # the run read files that were fetched before
        return touched, measured
    if not e.is_cold or not e.is_slow_reading:
        return measured, measured
    first, room = _rate_with_hits(e, e.hits), e.setup.cache_room
    if room is not None:
        return first, _rate_with_hits(e, room)
    return first, _whole_rate(e) if e.keeps_files else first


def _is_slow_at_first(e: Evidence) -> bool:
    return _epochs(e)[0] < SLOWER * _epochs(e)[1]


def _touch_rate(e: Evidence, in_flight: float) -> float:
    """Rate at which so many requests in flight read files for the first time; infinite if that was not measured."""
    if e.touches is None or not e.touches.first_seconds:
        return math.inf
    return in_flight * e.images_per_request / e.touches.first_seconds


def _waits_for_touches(e: Evidence) -> bool:
    """Whether first touches, not the bandwidth, limit the loader."""
    is_late = e.touches is None or _touch_rate(e, e.requests_in_flight) < NEAR * e.rate("loader")
    return e.is_slow_reading and is_late


def _whole(e: Evidence) -> Reach:
    """An epoch that finds all samples in memory or in the local cache."""
    has_warm = e.is_cold and "loader_warm" in e.ceilings
    decode = min(e.rate("decode_all"), e.rate("loader_warm") if has_warm else math.inf)
    return e.reach(loader=math.inf, storage=math.inf, decode=decode)


def _whole_rate(e: Evidence) -> float:
    return max(e.measured_rate, e.rate("full_warm") if "full_warm" in e.ceilings else _whole(e).rate)


def _rate_with_hits(e: Evidence, share: float) -> float:
    """Rate of an epoch that finds this share of its samples in memory or in the local cache: the storage then delivers
    only the rest."""
    return _whole_rate(e) if share >= 1 else min(_whole_rate(e), e.measured_rate / (1 - share))


def _is_lazy(e: Evidence) -> bool | None:
    """Whether the mount fetches files from a remote store at their first touch; None if that is unknown."""
    if e.setup.cache_room is not None:
        return False
    if e.touches is not None and e.touches.lazy is not None:
        return e.touches.lazy
    return True if e.host.released_files else None


def _epoch_rate(e: Evidence) -> float | None:
    """Images per second of the next epoch, if it differs from the run that was measured."""
    first = _epochs(e)[0]
    return first if _is_slow_at_first(e) or first != e.measured_rate else None


def _both_rates(e: Evidence) -> str:
    first, later = _epochs(e)
    if _is_slow_at_first(e):
        return f"about {first:.0f} img/s in the first epoch, {later:.0f} in later ones"
    if _epoch_rate(e) is None:
        return ""
    return f"about {first:.0f} img/s in each epoch, of a possible {_without_waits(e).rate:.0f}"


# Remedies


def _best_depth(e: Evidence) -> tuple[float, float]:
    """(requests in flight, rate): the fewest requests in flight that reach nearly the storage's highest rate."""
    most = max((rate for _, rate in e.depths), default=0.0)
    return next((point for point in sorted(e.depths) if point[1] >= NEARLY_ALL * most), (0.0, 0.0))


def _deeper(e: Evidence) -> Texts:
    """The override for more requests in flight, if more requests were measured to be faster: the fastest number
    if data.reads_in_flight is "auto", else "auto"."""
    depth, rate = _best_depth(e)
    if SLOWER * rate <= e.storage_rate_at_depth:
        return ()
    number = math.ceil(depth / max(1, e.setup.num_workers))
    return (f"data.reads_in_flight={number if e.configured('data.reads_in_flight', 'auto') == 'auto' else 'auto'}",)


def _fewer_requests(e: Evidence) -> Texts:
    """Half as many as now."""
    return (f"data.reads_in_flight={max(1, math.floor(e.requests_in_flight / 2 / max(1, e.setup.num_workers)))}",)


def _passes(e: Evidence, otherwise: str) -> str:
    """The remedy; of a cause that passes after the first epoch, first that it passes."""
    if not _is_slow_at_first(e):
        return otherwise
    then = ", which fills the local cache" if e.setup.cache_room is not None else ""
    once = f"this passes after the first epoch{then}; to wait once and not in each run, hydrate before training"
    return f"{once}; or {otherwise}"


def _nearer(e: Evidence) -> str:
    return "copy the shards to a local disk" if e.setup.packed else "pack the data into shards on a local disk"


def _hydrate(e: Evidence) -> Texts:
    return (hydrate(e),) if _is_slow_at_first(e) else ()


def _without_waits(e: Evidence) -> Reach:
    """The run without waits for the storage, as later epochs may be by themselves."""
    reached = _whole(e)
    return Reach(_epochs(e)[1], reached.limit) if _is_slow_at_first(e) else reached


def _with_more_reads(e: Evidence) -> Reach:
    """The run with the override for more requests in flight; without waits if no more requests help."""
    if not _deeper(e) or _is_slow_at_first(e):
        return _without_waits(e)
    return e.reach(loader=math.inf, storage=_best_depth(e)[1], decode=e.rate("decode_all"))


# Rules


def _is_cache_too_small(e: Evidence) -> bool:
    """Whether later epochs wait for the storage too."""
    room = e.setup.cache_room
    return room is not None and room < MOSTLY and e.is_slow_reading and _epochs(e)[1] < SLOWER * _whole_rate(e)


def _lazy_says(e: Evidence) -> str:
    if e.touches is not None and e.touches.lazy is not None:
        first_ms, second_ms = 1000 * e.touches.first_seconds, 1000 * e.touches.second_seconds
        return f"files take {first_ms:.0f} ms at the first read, {second_ms:.0f} ms at the second"
    return f"{e.host.released_files} of {e.host.checked_files} checked files are released"


def _latency_says(e: Evidence) -> str:
    text = f"files arrive {1000 * e.fact('storage', 'latency_median'):.0f} ms after their request, and the loader has "
    text += f"{e.requests_in_flight:.0f} requests in flight: {e.rate('loader'):.0f} img/s"
    is_stalling = e.longest_gap_seconds >= STALL_SECONDS
    return f"{text}, with pauses of up to {e.longest_gap_seconds:.1f} s" if is_stalling else text


STORAGE_RULES = (
    # of a URL
    Rule(
        name="throttled",
        cause="Storage-bound: the service refuses requests, because it gets too many",
        frees="storage",
        when=lambda e: (
            e.is_slow_reading and 0 < e.fact("loader", "requests") * LEAST_THROTTLED <= e.fact("loader", "throttled")
        ),
        says=lambda e: (
            f"the service refused {e.fact('loader', 'throttled'):.0f} of {e.fact('loader', 'requests'):.0f} requests "
            f"as too many (429, 503), with {e.requests_in_flight:.0f} in flight"
        ),
        remedy="keep fewer requests in flight, spread the objects over more prefixes, ask the service for a higher "
        "limit, or pack: shards need fewer requests",
        overrides=_fewer_requests,
        commands=lambda e: () if e.setup.packed else (pack(e),),
        reaches=_without_waits,
        rate=_epoch_rate,
        compares=_both_rates,
    ),
    Rule(
        name="cache_too_small",
        cause="Storage-bound: the local cache has too little room for the data",
        frees="storage",
        when=_is_cache_too_small,
        says=lambda e: (
            f"{e.setup.cache_evidence}, and each epoch reads the rest "
            f"from the storage: about {_epochs(e)[1]:.0f} img/s, and {_whole_rate(e):.0f} if all of it were kept"
        ),
        remedy="raise data.cache_gb, put the cache on a larger local disk (data.cache_dir), or pack smaller images",
        commands=lambda e: (pack(e, "max_side=256"),),
        reaches=lambda e: Reach(_whole_rate(e), _whole(e).limit),
        rate=lambda e: _epochs(e)[1],
        compares=lambda e: f"about {_epochs(e)[1]:.0f} img/s in each later epoch, of a possible {_whole_rate(e):.0f}",
    ),
    # of a folder, or of a URL that has no cause of its own
    Rule(
        name="lazy_mount",
        cause="Storage-bound: the mount fetches each file from a remote store at first touch",
        frees="storage",
        unknown=lambda e: (
            f"could not be checked: {e.touches.evidence if e.touches else 'no file was read twice'}"
            if _is_lazy(e) is None
            else ""
        ),
        when=lambda e: bool(_is_lazy(e)) and (_is_slow_at_first(e) or _waits_for_touches(e)),
        says=_lazy_says,
        remedy=lambda e: f"fetch every file once before training, or {_nearer(e)}",
        commands=lambda e: (hydrate(e), pack(e)),
        reaches=_without_waits,
        rate=_epoch_rate,
        compares=_both_rates,
    ),
    Rule(
        name="storage_bandwidth",
        cause="Storage-bound: storage gives too few MB/s",
        frees="storage",
        when=lambda e: e.is_slow_reading and e.storage_bound == "bandwidth",
        says=lambda e: (
            f"storage gives {e.rate('storage') * e.mb_per_image:.0f} MB/s, and more requests in flight bring no more: "
            f"{e.rate('storage'):.0f} img/s"
        ),
        remedy=lambda e: _passes(
            e,
            f"pack smaller images{f' ({e.pack.bytes_ratio:.2f} of the bytes, measured)' if e.pack else ''}, or "
            f"{_nearer(e)}",
        ),
        commands=lambda e: (*_hydrate(e), smaller_pack(e), *((pack(e),) if e.setup.packed else ())),
        reaches=_without_waits,
        rate=_epoch_rate,
        compares=_both_rates,
    ),
    Rule(
        name="storage_latency",
        cause="Storage-bound: storage answers late",
        frees="storage",
        when=lambda e: e.is_slow_reading,
        says=_latency_says,
        remedy=lambda e: _passes(e, f"keep more requests in flight, or {_nearer(e)}" if _deeper(e) else _nearer(e)),
        overrides=_deeper,
        commands=lambda e: (*_hydrate(e), pack(e)),
        reaches=_with_more_reads,
        rate=_epoch_rate,
        compares=_both_rates,
    ),
)
