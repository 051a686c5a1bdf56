"""Causes in the storage and the loader."""

import math

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.gains import loader_gain, stages_gain
from imagenet_opt.doctor.remedies import data_place, smaller_pack
from imagenet_opt.doctor.symptoms import (
    STALL_SECONDS,
    deeper,
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
"""Whether the data is packed -> remedy."""
_LEAST_GAIN = 1.05
"""Least predicted gain for which the doctor advises to prefetch more batches."""


def lazy_mount(evidence: Evidence) -> Finding:
    facts, data = evidence.facts, data_place(evidence)
    if (lazy := is_lazy(evidence)) is None:
        reason = facts.first_touch_evidence or "no file was read twice"
        return Finding("lazy_mount", None, f"could not be checked: {reason}")
    text, gain = released(evidence), None
    if facts.lazy is not None:
        first_ms, second_ms = 1000 * (facts.first_touch_seconds or 0.0), 1000 * (facts.second_touch_seconds or 0.0)
        text = f"files take {first_ms:.0f} ms at the first read, {second_ms:.0f} ms at the second"
    first_rate, later_rate = evidence.first_epoch_rate, evidence.measured_rate
    at_first = is_lazy_at_first(evidence)
    fired = lazy and (at_first or is_slow_reading(evidence))
    if at_first and first_rate is not None:
        text += f": the first epoch gives about {first_rate:.0f} img/s, later epochs {later_rate:.0f}"
        gain = later_rate / first_rate
    elif fired:
        gain = loader_gain(evidence, evidence.rate("decode_all"))
    remedy = f"fetch every file once before training, or {_NEARER[data.packed]}"
    return Finding("lazy_mount", fired, text, remedy, commands=(data.hydrate(), data.pack()), gain=gain)


def storage_bandwidth(evidence: Evidence) -> Finding:
    data, rate = data_place(evidence), evidence.rate("storage")
    fired = is_slow_reading(evidence) and not is_lazy(evidence) and evidence.facts.storage_bound == "bandwidth"
    mb_per_second = rate * (evidence.facts.mb_per_image or 0.0)
    ratio = evidence.facts.pack_bytes_ratio
    measured = f" ({ratio:.2f} of the bytes, measured with some images)" if ratio else ""
    return Finding(
        "storage_bandwidth",
        fired,
        f"storage gives {mb_per_second:.0f} MB/s with any number of requests in flight: {rate:.0f} img/s",
        f"pack smaller images{measured}, or {_NEARER[data.packed]}",
        commands=(smaller_pack(evidence), *((data.pack(),) if data.packed else ())),
        gain=loader_gain(evidence, evidence.rate("decode_all")) if fired else None,
    )


def storage_latency(evidence: Evidence) -> Finding:
    latency, in_flight = evidence.facts.storage_latency_seconds or 0.0, evidence.facts.requests_in_flight or 0.0
    fired = is_slow_reading(evidence) and not is_lazy(evidence) and evidence.facts.storage_bound != "bandwidth"
    text = f"files arrive {1000 * latency:.0f} ms after their request, with {in_flight:.0f} requests in flight"
    text += f": {evidence.rate('loader'):.0f} img/s"
    if evidence.longest_gap_seconds >= STALL_SECONDS:
        text += f", with pauses of up to {evidence.longest_gap_seconds:.1f} s"
    data, overrides = data_place(evidence), deeper(evidence)
    remedy, rate = _NEARER[data.packed], evidence.rate("decode_all")
    if overrides:
        remedy, rate = f"keep more requests in flight, or {remedy}", min(rate, evidence.best_depth[1])
    gain = loader_gain(evidence, rate) if fired else None
    return Finding("storage_latency", fired, text, remedy, overrides, (data.pack(),), gain)


def small_prefetch(evidence: Evidence) -> Finding:
    ahead, workers = evidence.facts.prefetch_factor, max(1, evidence.facts.num_workers)
    gap, gain = evidence.longest_gap_seconds, stages_gain(evidence)
    is_enough = is_ample(evidence) or (not is_slow_reading(evidence) and not is_short_of_cpu(evidence))
    helps = bool(ahead) and gain >= _LEAST_GAIN
    fired = is_starved(evidence) and is_enough and helps and not is_crowded(evidence)
    enough = max(4 * ahead, math.ceil(1.5 * gap / evidence.step_seconds / workers))
    return Finding(
        "small_prefetch",
        fired,
        f"the loader gives {evidence.rate('loader'):.0f} img/s on average, with pauses of up to {1000 * gap:.0f} ms; "
        f"each worker prepares {ahead} batches ahead",
        "prepare more batches ahead",
        overrides=(f"data.prefetch_factor={enough}",),
        gain=gain if fired else None,
    )
