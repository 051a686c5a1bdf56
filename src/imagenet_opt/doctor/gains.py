"""How many times as fast a run is predicted to be once a cause is mended: the next limit ends each gain."""

from collections.abc import Callable
from dataclasses import replace

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.symptoms import SLOWER, is_short_of_cpu, is_slow_reading


def loader_gain(seen: Evidence, rate: float) -> float:
    """When the loader gives `rate`, as far as CPUs and the other stages allow."""
    return max(1.0, min(rate, seen.cpu_budget, seen.fed) / seen.measured)


def first_epoch_gain(seen: Evidence) -> float:
    """When the first epoch is as fast as later ones."""
    return seen.measured / (seen.first_epoch or seen.measured)


def gpu_gain(seen: Evidence, rate: float) -> float:
    """When the GPU takes `rate`, as far as the loader and the copy allow."""
    return max(1.0, min(seen.with_copy(rate), seen.supply) / seen.measured)


def stall_gain(seen: Evidence) -> float:
    """When what stands between the ceilings and the run is gone."""
    return max(1.0, min(seen.fed, seen.supply) / seen.measured)


def most_gain(seen: Evidence) -> float:
    """Up to the GPU alone, with CPUs in plenty."""
    return max(1.0, seen.with_copy(seen.gpu) / seen.measured)


def cpus_gain(seen: Evidence, usable: float) -> float:
    """With `usable` CPUs instead of those there are now."""
    return min(max(1.0, usable / seen.facts.usable_cpus), most_gain(seen))


def gains_of_environment(seen: Evidence) -> tuple[Finding, ...]:
    """Findings of the environment with what mending them would bring, where an experiment allows to say so."""
    return tuple(
        replace(one, gain=_OF_ENVIRONMENT[one.rule](seen)) if one.fired and one.rule in _OF_ENVIRONMENT else one
        for one in seen.environment
    )


def _of_storage(seen: Evidence) -> float | None:
    """By another storage: nothing where reading is not the limit."""
    return None if is_slow_reading(seen) else 1.0


def _of_local_data(seen: Evidence) -> float:
    """By data that is near: then the loader gives what it gives from memory."""
    return loader_gain(seen, seen.decode) if is_slow_reading(seen) else 1.0


def _of_cpus(seen: Evidence) -> float:
    return cpus_gain(seen, seen.facts.machine_cpus) if is_short_of_cpu(seen) else 1.0


def _of_gpu(seen: Evidence) -> float | None:
    """By a GPU that does what its kind does, where that is known."""
    rated = seen.facts.rated_images_per_second
    return gpu_gain(seen, max(seen.gpu, rated)) if rated else None


def _of_link(seen: Evidence) -> float | None:
    return None if seen.with_copy(seen.computes) < SLOWER * seen.computes else 1.0


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
    "gpu_persistence": lambda seen: 1.0,
    "gpu_compute_mode": lambda seen: 1.0,
}
"""Those of one process; the two last ones cost starts of processes, and no step."""
