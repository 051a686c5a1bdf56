"""Predicts how many times as fast a run becomes once a cause is fixed. The next limit caps each gain."""

from collections.abc import Callable
from dataclasses import replace

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.symptoms import is_short_of_cpu, is_slow_reading, is_slow_to_copy


def loader_gain(evidence: Evidence, rate: float) -> float:
    """Gain if the loader reaches `rate`, limited by the CPUs and the other stages."""
    return max(1.0, min(rate, evidence.cpu_rate, evidence.fed_rate) / evidence.measured_rate)


def stages_gain(evidence: Evidence) -> float:
    """Gain if the run reaches the rate that its stages allow."""
    return loader_gain(evidence, evidence.rate("loader"))


def pack_gain(evidence: Evidence) -> float | None:
    """Gain if packed images are decoded as fast as the doctor forecasts; None without a forecast."""
    speedup = evidence.facts.pack_speedup
    if speedup is None:
        return None
    supply = min(evidence.rate("loader") * speedup, evidence.cpu_rate_with(evidence.rate("decode_all") * speedup))
    return max(1.0, min(supply, evidence.fed_rate) / evidence.measured_rate)


def gpu_gain(evidence: Evidence, rate: float) -> float:
    """Gain if the GPU reaches `rate`, limited by the loader and the copy."""
    return max(1.0, min(evidence.rate_with_copy(rate), evidence.supply_rate) / evidence.measured_rate)


def most_gain(evidence: Evidence) -> float:
    """Gain with unlimited CPUs: the run then reaches the rate of the GPU alone."""
    return max(1.0, evidence.rate_with_copy(evidence.rate("gpu")) / evidence.measured_rate)


def cpus_gain(evidence: Evidence, usable: float) -> float:
    """Gain with `usable` CPUs instead of the present ones."""
    return min(max(1.0, usable / evidence.facts.usable_cpus), most_gain(evidence))


def gains_of_environment(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings of the environment, with the gains of their remedies if the experiments can predict them."""
    findings = []
    for finding in evidence.environment:
        predict = _OF_ENVIRONMENT.get(finding.rule)
        findings.append(replace(finding, gain=predict(evidence)) if finding.fired and predict else finding)
    return tuple(findings)


def _of_storage(evidence: Evidence) -> float | None:
    """Gain from a faster storage: 1 if reading is not the limit, else unknown."""
    return None if is_slow_reading(evidence) else 1.0


def _of_local_data(evidence: Evidence) -> float:
    """Gain from data on a local disk, which the loader then reads as fast as from memory."""
    return loader_gain(evidence, evidence.rate("decode_all")) if is_slow_reading(evidence) else 1.0


def _of_cpus(evidence: Evidence) -> float:
    return cpus_gain(evidence, evidence.facts.machine_cpus) if is_short_of_cpu(evidence) else 1.0


def _of_gpu(evidence: Evidence) -> float | None:
    """Gain from a GPU as fast as others of its kind; None if the others' rate is unknown."""
    rated = evidence.facts.rated_images_per_second
    return gpu_gain(evidence, max(evidence.rate("gpu"), rated)) if rated else None


def _of_link(evidence: Evidence) -> float | None:
    return None if is_slow_to_copy(evidence) else 1.0


_OF_ENVIRONMENT: dict[str, Callable[[Evidence], float | None]] = {
    "cpu_limits": _of_cpus,
    "slow_mount": _of_local_data,
    "released_files": _of_local_data,
    "page_cache": _of_local_data,
    "mount_options": _of_storage,
    "lustre_limits": _of_storage,
    "gpu_clocks": _of_gpu,
    "gpu_others": _of_gpu,
    "gpu_link": _of_link,
}
"""Rule -> gain of its remedy, for one process."""
