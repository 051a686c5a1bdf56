"""Causes in what brings batches: the storage, and how much is made ahead."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.gains import first_epoch_gain, loader_gain, stall_gain
from imagenet_opt.doctor.remedies import data_place
from imagenet_opt.doctor.symptoms import (
    SLOWER,
    STALL_SECONDS,
    is_ample,
    is_crowded,
    is_lazy,
    is_lazy_at_first,
    is_short_of_cpu,
    is_slow_reading,
    is_starved,
    released,
)

_NEARER = {False: "pack the data into shards on a local disk", True: "copy the shards to a local disk"}
"""By whether the data is packed already."""
_LEAST_GAIN = 1.05
"""Batches that are made ahead bring nothing to a run that gives what its stages give already."""


def lazy_mount(seen: Evidence) -> Finding:
    first, second = seen.facts.first_touch_seconds or 0.0, seen.facts.second_touch_seconds or 0.0
    lazy, data = is_lazy(seen), data_place(seen)
    if lazy is None:
        return Finding("lazy_mount", None, f"could not be looked at: {seen.facts.first_touch_evidence or 'not tried'}")
    at_first, slow = is_lazy_at_first(seen), is_slow_reading(seen)
    touches = f"files take {1000 * first:.0f} ms at their first touch, {1000 * second:.0f} ms at their second"
    if at_first and seen.first_epoch is not None:
        touches += f": the first epoch gives about {seen.first_epoch:.0f} img/s, later ones {seen.measured:.0f}"
    fired = lazy and (at_first or slow)
    return Finding(
        "lazy_mount",
        fired,
        touches if seen.facts.lazy is not None else released(seen),
        f"fetch every file once before training, or {_NEARER[data.packed]}",
        commands=(data.hydrate(), data.pack()),
        gain=first_epoch_gain(seen) if at_first else loader_gain(seen, seen.decode) if fired else None,
    )


def storage_bandwidth(seen: Evidence) -> Finding:
    rate, data = seen.storage * (seen.facts.mb_per_image or 0.0), data_place(seen)
    fired = is_slow_reading(seen) and not is_lazy(seen) and seen.facts.storage_bound == "bandwidth"
    return Finding(
        "storage_bandwidth",
        fired,
        f"storage gives {rate:.0f} MB/s however many files are asked for at a time: {seen.storage:.0f} img/s",
        f"pack the images smaller (max_side), or {_NEARER[data.packed]}",
        commands=(data.pack("max_side=400"), *((data.pack(),) if data.packed else ())),
        gain=loader_gain(seen, seen.decode) if fired else None,
    )


def storage_latency(seen: Evidence) -> Finding:
    late, deep = seen.facts.storage_latency_seconds or 0.0, seen.facts.requests_in_flight or 0.0
    fired = is_slow_reading(seen) and not is_lazy(seen) and seen.facts.storage_bound != "bandwidth"
    overrides, data = _deeper(seen), data_place(seen)
    pauses = f", with pauses of up to {seen.longest_gap:.1f} s" if seen.longest_gap >= STALL_SECONDS else ""
    near = _NEARER[data.packed]
    most = min(seen.decode, seen.best_depth[1]) if overrides else seen.decode
    return Finding(
        "storage_latency",
        fired,
        f"files arrive {1000 * late:.0f} ms after they are asked for, {deep:.0f} in flight: "
        f"{seen.loader:.0f} img/s{pauses}",
        f"ask for more at a time, or {near}" if overrides else near,
        overrides=overrides,
        commands=(data.pack(),),
        gain=loader_gain(seen, most) if fired else None,
    )


def small_prefetch(seen: Evidence) -> Finding:
    ahead, workers = seen.facts.prefetch_factor, max(1, seen.facts.num_workers)
    gap = seen.longest_gap
    is_enough = is_ample(seen) or (not is_slow_reading(seen) and not is_short_of_cpu(seen))
    helps = stall_gain(seen) >= _LEAST_GAIN
    fired = is_starved(seen) and bool(ahead) and is_enough and helps and not is_crowded(seen)
    return Finding(
        "small_prefetch",
        fired,
        f"the loader gives {seen.loader:.0f} img/s on average, with pauses of up to {1000 * gap:.0f} ms; "
        f"{ahead} batches a worker are made ahead",
        "more batches ahead",
        overrides=(f"data.prefetch_factor={max(4 * ahead, math.ceil(1.5 * gap / seen.step / workers))}",),
        gain=stall_gain(seen) if fired else None,
    )


def _deeper(seen: Evidence) -> tuple[str, ...]:
    """More requests in flight where they were seen to bring more: by itself, or by number where that has failed."""
    depth, rate = seen.best_depth
    if SLOWER * rate <= seen.storage_at_depth:
        return ()
    follows = seen.facts.reads_in_flight == "auto"
    number = math.ceil(depth / max(1, seen.facts.num_workers))
    return (f"data.reads_in_flight={number if follows else 'auto'}",)
