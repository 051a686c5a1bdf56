"""Causes in the storage and the loader."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.gains import first_epoch_gain, loader_gain, stall_gain
from imagenet_opt.doctor.remedies import data_place, smaller_pack
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
"""Advice by whether the data is packed already."""
_LEAST_GAIN = 1.05
"""Least predicted gain for the advice of more batches ahead; a run as fast as its stages gains nothing."""


def lazy_mount(evidence: Evidence) -> Finding:
    first, second = evidence.facts.first_touch_seconds or 0.0, evidence.facts.second_touch_seconds or 0.0
    lazy, data = is_lazy(evidence), data_place(evidence)
    if lazy is None:
        return Finding(
            "lazy_mount", None, f"could not be checked: {evidence.facts.first_touch_evidence or 'not tried'}"
        )
    at_first, slow = is_lazy_at_first(evidence), is_slow_reading(evidence)
    touches = f"files take {1000 * first:.0f} ms at their first touch, {1000 * second:.0f} ms at their second"
    if at_first and evidence.first_epoch_rate is not None:
        later = f"later ones {evidence.measured_rate:.0f}"
        touches += f": the first epoch gives about {evidence.first_epoch_rate:.0f} img/s, {later}"
    fired = lazy and (at_first or slow)
    return Finding(
        "lazy_mount",
        fired,
        touches if evidence.facts.lazy is not None else released(evidence),
        f"fetch every file once before training, or {_NEARER[data.packed]}",
        commands=(data.hydrate(), data.pack()),
        gain=first_epoch_gain(evidence) if at_first else loader_gain(evidence, evidence.decode_rate) if fired else None,
    )


def storage_bandwidth(evidence: Evidence) -> Finding:
    rate, data = evidence.storage_rate * (evidence.facts.mb_per_image or 0.0), data_place(evidence)
    fired = is_slow_reading(evidence) and not is_lazy(evidence) and evidence.facts.storage_bound == "bandwidth"
    ratio = evidence.facts.pack_bytes_ratio
    smaller = f" ({ratio:.2f} of their bytes, measured with some of them)" if ratio else ""
    return Finding(
        "storage_bandwidth",
        fired,
        f"storage gives {rate:.0f} MB/s with any number of requests in flight: {evidence.storage_rate:.0f} img/s",
        f"pack the images smaller{smaller}, or {_NEARER[data.packed]}",
        commands=(smaller_pack(evidence), *((data.pack(),) if data.packed else ())),
        gain=loader_gain(evidence, evidence.decode_rate) if fired else None,
    )


def storage_latency(evidence: Evidence) -> Finding:
    latency, in_flight = evidence.facts.storage_latency_seconds or 0.0, evidence.facts.requests_in_flight or 0.0
    fired = is_slow_reading(evidence) and not is_lazy(evidence) and evidence.facts.storage_bound != "bandwidth"
    overrides, data = _deeper(evidence), data_place(evidence)
    pauses = (
        f", with pauses of up to {evidence.longest_gap_seconds:.1f} s"
        if evidence.longest_gap_seconds >= STALL_SECONDS
        else ""
    )
    nearer = _NEARER[data.packed]
    most = min(evidence.decode_rate, evidence.best_depth[1]) if overrides else evidence.decode_rate
    return Finding(
        "storage_latency",
        fired,
        f"files arrive {1000 * latency:.0f} ms after the request, with {in_flight:.0f} in flight: "
        f"{evidence.loader_rate:.0f} img/s{pauses}",
        f"keep more requests in flight, or {nearer}" if overrides else nearer,
        overrides=overrides,
        commands=(data.pack(),),
        gain=loader_gain(evidence, most) if fired else None,
    )


def small_prefetch(evidence: Evidence) -> Finding:
    ahead, workers = evidence.facts.prefetch_factor, max(1, evidence.facts.num_workers)
    gap = evidence.longest_gap_seconds
    is_enough = is_ample(evidence) or (not is_slow_reading(evidence) and not is_short_of_cpu(evidence))
    helps = stall_gain(evidence) >= _LEAST_GAIN
    fired = is_starved(evidence) and bool(ahead) and is_enough and helps and not is_crowded(evidence)
    return Finding(
        "small_prefetch",
        fired,
        f"the loader gives {evidence.loader_rate:.0f} img/s on average, with pauses of up to {1000 * gap:.0f} ms; "
        f"{ahead} batches per worker are ready ahead",
        "prepare more batches ahead",
        overrides=(f"data.prefetch_factor={max(4 * ahead, math.ceil(1.5 * gap / evidence.step_seconds / workers))}",),
        gain=stall_gain(evidence) if fired else None,
    )


def _deeper(evidence: Evidence) -> tuple[str, ...]:
    """Overrides for more requests in flight, if those were measured to be faster: a number if "auto" is configured,
    else "auto"."""
    depth, rate = evidence.best_depth
    if SLOWER * rate <= evidence.storage_rate_at_depth:
        return ()
    is_auto = evidence.facts.reads_in_flight == "auto"
    number = math.ceil(depth / max(1, evidence.facts.num_workers))
    return (f"data.reads_in_flight={number if is_auto else 'auto'}",)
