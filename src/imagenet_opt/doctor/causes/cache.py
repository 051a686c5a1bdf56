"""Causes of data below a URL: the service refuses requests, or the local cache does not help yet, or not enough."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.gains import loader_gain
from imagenet_opt.doctor.remedies import LOCAL_CACHE, data_place
from imagenet_opt.doctor.symptoms import deeper, is_cache_too_small, is_cold_cache, is_slow_reading

_FOLDER = "data.root is a folder"
_LEAST_THROTTLED = 0.01
"""Share of refused requests from which they count as a cause: our choice. Each costs a pause of a tenth of a second and
more."""


def throttled(evidence: Evidence) -> Finding:
    facts, data = evidence.facts, data_place(evidence)
    if facts.throttled_requests is None or not facts.storage_requests:
        is_folder = facts.cache_room is None
        return Finding("throttled", False if is_folder else None, _FOLDER if is_folder else "not measured")
    share = facts.throttled_requests / facts.storage_requests
    in_flight = facts.requests_in_flight or 1.0
    depth = min(evidence.best_depth[0] or in_flight, in_flight / 2)
    fewer = max(1, math.floor(depth / max(1, facts.num_workers)))
    return Finding(
        "throttled",
        is_slow_reading(evidence) and share >= _LEAST_THROTTLED,
        f"the service refused {facts.throttled_requests} of {facts.storage_requests:.0f} requests as too many (429, "
        f"503), with {in_flight:.0f} in flight",
        "keep fewer requests in flight, spread the objects over more prefixes, or ask the service for a higher limit"
        + ("" if data.packed else "; packed shards need fewer requests")
        + ("; later epochs read from the local cache" if is_cold_cache(evidence) else ""),
        overrides=(f"data.reads_in_flight={fewer}",),
        commands=() if data.packed else (data.pack(),),
    )


def cold_cache(evidence: Evidence) -> Finding:
    facts = evidence.facts
    if facts.cache_room is None:
        return Finding("cold_cache", False, _FOLDER)
    fired, overrides = is_cold_cache(evidence), deeper(evidence)
    first, later = evidence.present_rate, evidence.later_rate
    return Finding(
        "cold_cache",
        fired,
        f"the local cache has {facts.cached_share or 0.0:.0%} of the data and room for {facts.cache_room:.0%}: the "
        f"first epoch reads from the storage, about {first:.0f} img/s; later epochs give about {later:.0f}",
        "this passes after the first epoch; to wait once instead of in each run, fill the cache before training"
        + ("; more requests in flight fill it sooner" if overrides else ""),
        overrides,
        (data_place(evidence).hydrate(),),
        gain=later / first if fired else None,
    )


def cache_too_small(evidence: Evidence) -> Finding:
    facts, data = evidence.facts, data_place(evidence)
    if facts.cache_room is None:
        return Finding("cache_too_small", False, _FOLDER)
    fired = is_cache_too_small(evidence)
    kept = facts.cache_evidence or f"the local cache keeps {facts.cache_room:.0%} of the data"
    whole, later = evidence.whole_rate, evidence.later_rate
    is_limited = evidence.configured("data.cache_gb") is not None
    room = "data.cache_gb=null" if is_limited else f"data.cache_dir={LOCAL_CACHE}"
    return Finding(
        "cache_too_small",
        fired,
        f"{kept}, and each epoch reads what is not kept from the storage: about {later:.0f} img/s, "
        f"and {whole:.0f} if all of it were kept",
        f"{'raise data.cache_gb, or ' * is_limited}put the cache on a larger local disk (data.cache_dir), or pack "
        "smaller images",
        commands=(data.hydrate(room), data.pack("max_side=256")),
        gain=whole / later if fired else None,
    )


def slow_cache(evidence: Evidence) -> Finding:
    facts = evidence.facts
    if facts.cache_room is None:
        return Finding("slow_cache", False, _FOLDER)
    if evidence.is_cold:
        return Finding("slow_cache", False, "most samples are not in the local cache")
    fired, rate = is_slow_reading(evidence), evidence.rate("storage")
    return Finding(
        "slow_cache",
        fired,
        f"the disk of the local cache gives {rate * (facts.mb_per_image or 0.0):.0f} MB/s: {rate:.0f} img/s",
        "put the cache on a faster local disk, such as the NVMe disk of the machine (data.cache_dir)",
        commands=(data_place(evidence).hydrate(f"data.cache_dir={LOCAL_CACHE}"),),
        gain=loader_gain(evidence, evidence.rate("decode_all")) if fired else None,
    )
