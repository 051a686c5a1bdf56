"""Causes in the storage and in the local cache of a URL; the order of all causes, and the verdict."""

import math

from imagenet_opt.doctor.causes_cpu import BATCH_RULES, CONTENTION, CPU_RULES
from imagenet_opt.doctor.causes_gpu import GPU_RULES, LAUNCH_BOUND, PROCESS_RULES, SLOW_COPY
from imagenet_opt.doctor.commands import Texts, hydrate, pack, smaller_pack
from imagenet_opt.doctor.diagnosis import Diagnosis, Rule, diagnose
from imagenet_opt.doctor.environment import ENVIRONMENT, data_bytes, page_cache_bytes
from imagenet_opt.doctor.evidence import SLOWER, STALL_SECONDS, Evidence
from imagenet_opt.measure.storage.page_cache import MOSTLY

_LEAST_THROTTLED = 0.01  # share of refused requests: our choice; each costs a pause of a tenth of a second and more
_NEARLY_ALL = 0.9  # the fewest requests in flight that reach this share of the storage's highest rate are enough

# Epochs that differ


def _epochs(e: Evidence) -> tuple[float, float]:
    """Rates of the first epoch and of later ones, which differ only if reading limits the first one."""
    measured, touched = e.measured_rate, _first_touch_rate(e)
    if e.is_cold and e.setup.cache_room is not None and e.is_slow_reading:
        return _rate_with_cache(e, e.setup.cached_share or 0.0), _rate_with_cache(e, e.setup.cache_room)
    if e.is_cold and _is_lazy(e) and touched < SLOWER * measured:  # the run read files that were fetched before
        return touched, measured
    fits = e.setup.cache_room is None and not e.left_out and page_cache_bytes(e) >= data_bytes(e)
    return measured, _whole_rate(e) if e.is_cold and e.is_slow_reading and fits else measured


def _is_slow_at_first(e: Evidence) -> bool:
    return _epochs(e)[0] < SLOWER * _epochs(e)[1]


def _first_touch_rate(e: Evidence) -> float:
    """Rate of an epoch that reads each file for the first time: requests in flight / seconds of a first touch;
    infinite if first touches were not measured."""
    if e.touches is None or not e.touches.first_seconds:
        return math.inf
    return max(e.touches.in_flight, e.requests_in_flight) * e.images_per_request / e.touches.first_seconds


def _whole_rate(e: Evidence) -> float:
    """Rate of an epoch that finds all samples in memory or in the local cache."""
    if "full_warm" in e.ceilings:
        return max(e.measured_rate, e.rate("full_warm"))
    return max(e.measured_rate, min(e.rate("decode_all"), e.cpu_rate, e.fed_rate))


def _rate_with_cache(e: Evidence, share: float) -> float:
    """Rate of an epoch with this share of the data in the local cache: the storage then delivers only the rest."""
    return _whole_rate(e) if share >= 1 else min(_whole_rate(e), e.measured_rate / (1 - share))


def _is_lazy(e: Evidence) -> bool | None:
    """Whether the mount fetches files from a remote store at their first touch; None if that is unknown."""
    if e.setup.cache_room is not None:
        return False
    if e.touches is not None and e.touches.lazy is not None:
        return e.touches.lazy
    return True if e.host.released_files else None


def _slow_rate(e: Evidence) -> float:
    """Images per second while the storage is the cause: of the first epoch if only that is slow."""
    return _epochs(e)[0] if _is_slow_at_first(e) else e.measured_rate


def _both_rates(e: Evidence) -> str:
    first, later = _epochs(e)
    return f"about {first:.0f} img/s in the first epoch, {later:.0f} in later ones" * _is_slow_at_first(e)


# Remedies


def _best_depth(e: Evidence) -> tuple[float, float]:
    """(requests in flight, rate): the fewest requests in flight that reach nearly the storage's highest rate."""
    most = max((rate for _, rate in e.depths), default=0.0)
    return next((point for point in sorted(e.depths) if point[1] >= _NEARLY_ALL * most), (0.0, 0.0))


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
    then = ", which fills the local cache" * (e.setup.cache_room is not None)
    once = f"this passes after the first epoch{then}; to wait once and not in each run, hydrate before training; or "
    return once * _is_slow_at_first(e) + otherwise


def _nearer(e: Evidence) -> str:
    return "copy the shards to a local disk" if e.setup.packed else "pack the data into shards on a local disk"


def _hydrate(e: Evidence) -> Texts:
    return (hydrate(e),) if _is_slow_at_first(e) else ()


def _gain(e: Evidence, rate: float | None = None) -> float:
    """Gain if files are read at `rate`, by default as fast as from memory, as later epochs may do by themselves."""
    if _is_slow_at_first(e):
        return _epochs(e)[1] / _epochs(e)[0]
    return e.loader_gain(e.rate("decode_all") if rate is None else rate)


# Rules


def _is_cache_too_small(e: Evidence) -> bool:
    """Whether later epochs wait for the storage too."""
    room = e.setup.cache_room
    is_partial = room is not None and room < MOSTLY and e.is_slow_reading
    return is_partial and _epochs(e)[1] < SLOWER * _whole_rate(e)


def _lazy_says(e: Evidence) -> str:
    if e.touches is not None and e.touches.lazy is not None:
        first_ms, second_ms = 1000 * e.touches.first_seconds, 1000 * e.touches.second_seconds
        return f"files take {first_ms:.0f} ms at the first read, {second_ms:.0f} ms at the second"
    return f"{e.host.released_files} of {e.host.checked_files} checked files are released"


def _latency_says(e: Evidence) -> str:
    text = f"files arrive {1000 * e.fact('storage', 'latency_median'):.0f} ms after their request, and the loader has "
    text += f"{e.requests_in_flight:.0f} requests in flight: {e.rate('loader'):.0f} img/s"
    is_stalling = e.longest_gap_seconds >= STALL_SECONDS
    return text + f", with pauses of up to {e.longest_gap_seconds:.1f} s" * is_stalling


_STORAGE_RULES = (
    # of a URL
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
        when=_is_cache_too_small,
        says=lambda e: (
            f"{e.setup.cache_evidence}, and each epoch reads the rest "
            f"from the storage: about {_epochs(e)[1]:.0f} img/s, and {_whole_rate(e):.0f} if all of it were kept"
        ),
        remedy="raise data.cache_gb, put the cache on a larger local disk (data.cache_dir), or pack smaller images",
        commands=lambda e: (pack(e, "max_side=256"),),
        gain=lambda e: _whole_rate(e) / _epochs(e)[1],
        rate=lambda e: _epochs(e)[1],
        compares=lambda e: f"about {_epochs(e)[1]:.0f} img/s in each later epoch, of a possible {_whole_rate(e):.0f}",
    ),
    # of a folder, or of a URL that has no cause of its own
    Rule(
        name="lazy_mount",
        cause="Storage-bound: the mount fetches each file from a remote store at first touch",
        unknown=lambda e: (
            f"could not be checked: {e.touches.evidence if e.touches else 'no file was read twice'}"
            * (_is_lazy(e) is None)
        ),
        when=lambda e: bool(_is_lazy(e)) and (_is_slow_at_first(e) or e.is_slow_reading),
        says=_lazy_says,
        remedy=lambda e: f"fetch every file once before training, or {_nearer(e)}",
        commands=lambda e: (hydrate(e), pack(e)),
        gain=_gain,
        rate=_slow_rate,
        compares=_both_rates,
    ),
    Rule(
        name="storage_bandwidth",
        cause="Storage-bound: storage gives too few MB/s",
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
        gain=_gain,
        rate=_slow_rate,
        compares=_both_rates,
    ),
    Rule(
        name="storage_latency",
        cause="Storage-bound: storage answers late",
        when=lambda e: e.is_slow_reading,
        says=_latency_says,
        remedy=lambda e: _passes(e, "keep more requests in flight, or " * bool(_deeper(e)) + _nearer(e)),
        overrides=_deeper,
        commands=lambda e: (*_hydrate(e), pack(e)),
        gain=lambda e: _gain(e, min(e.rate("decode_all"), _best_depth(e)[1]) if _deeper(e) else None),
        rate=_slow_rate,
        compares=_both_rates,
    ),
)

CAUSES = (*GPU_RULES, *PROCESS_RULES, *_STORAGE_RULES, *BATCH_RULES, SLOW_COPY, *CPU_RULES, LAUNCH_BOUND, CONTENTION)
"""In order: the first rule that fires names the cause."""


def judge(evidence: Evidence) -> Diagnosis:
    return diagnose(evidence, CAUSES, ENVIRONMENT)
