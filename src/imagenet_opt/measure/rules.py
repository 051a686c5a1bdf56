"""One rule for each cause of a waiting GPU: when it fires, on what evidence, and what to do."""

import math
from collections.abc import Callable
from dataclasses import replace

from imagenet_opt.measure.diagnosis import Finding
from imagenet_opt.measure.evidence import BUSY_ENOUGH, Evidence

Rule = Callable[[Evidence], Finding]

SLOWER = 0.8
"""A stage that gives less than this share of another one is slower; what is nearer than that is within their noise."""
NEAR = 1.5
"""A storage that gives less than so many times what the loader gives holds it up: both are measured in bursts."""
AMPLE = 1.1
"""So many times what the GPU takes a loader must give on average to be ample."""
MAIN_SHARE = 0.4
"""Of the GPU's idle time that one occupation of the main process must fill to be its cause."""
OTHERS_SHARE = 0.2
"""Of the usable CPUs that processes of others must take to be told from a system's usual work."""
ORDINARY_WAITS = 0.5
"""Waits for the GPU in each step; fewer are those of now and then."""


def is_starved(seen: Evidence) -> bool:
    """Whether batches that are not there explain the idle GPU: training waits for them, or it gives what the loader
    gives alone, as little as that is."""
    follows = seen.supply < SLOWER * seen.gpu_beside_loader and seen.measured > SLOWER * seen.supply
    return _holds_up(seen, "fetch") or (follows and seen.busy < BUSY_ENOUGH)


def is_slow_reading(seen: Evidence) -> bool:
    """Whether the storage gives hardly more than the loader, and decoding does."""
    is_limit = seen.storage_at_depth < NEAR * seen.loader and seen.loader < SLOWER * seen.decode
    return is_starved(seen) and not is_ample(seen) and is_limit


def is_short_of_cpu(seen: Evidence) -> bool:
    """Whether decoding takes longer than the GPU, or the training process itself comes short of CPU time."""
    is_slow = min(seen.decode, seen.cpu_budget) < AMPLE * seen.gpu
    return (is_slow and is_starved(seen) and not is_ample(seen) and not is_slow_reading(seen)) or is_crowded(seen)


def is_crowded(seen: Evidence) -> bool:
    return seen.gpu_beside_loader < SLOWER * seen.gpu and seen.busy < BUSY_ENOUGH and not is_slow_reading(seen)


def is_ample(seen: Evidence) -> bool:
    """Whether the loader gives enough on average; without workers it never does, as training waits for it then."""
    return bool(seen.facts["num_workers"]) and seen.supply >= AMPLE * seen.gpu_beside_loader


def slow_gpu(seen: Evidence) -> Finding:
    rated = seen.fact("rated_images_per_second")
    if not rated:
        return Finding("slow_gpu", None, "how fast a GPU of this kind should be is not known here", _RECORD)
    fired = seen.gpu < SLOWER * rated and seen.busy_alone >= BUSY_ENOUGH
    return Finding(
        "slow_gpu",
        fired,
        f"alone it trains {seen.gpu:.0f} of the {rated:.0f} img/s that its kind does",
        "look for throttled clocks, other processes on the GPU, float32 instead of mixed precision",
        overrides=("trainer.precision=mixed",) if seen.texts.get("precision") == "32-true" else (),
        commands=("nvidia-smi -q -d PERFORMANCE,CLOCK",),
        gain=_gain(seen, rated) if fired else None,
    )


def host_sync(seen: Evidence) -> Finding:
    per_step = seen.fact("waits_per_step")
    where = seen.texts.get("waits", "nowhere")
    stalls = slow_logging(seen).fired or checkpoint_stall(seen).fired
    fired = per_step >= ORDINARY_WAITS and seen.busy < BUSY_ENOUGH and not is_starved(seen) and not stalls
    return Finding(
        "host_sync",
        fired,
        f"{per_step:.1f} waits for the GPU in an ordinary step: {where}",
        "keep the value on the GPU (tensor.detach()) and read it at logging steps only",
        gain=_until(seen) if fired else None,
    )


def launch_bound(seen: Evidence) -> Finding:
    fired = seen.busy_alone < BUSY_ENOUGH and seen.fact("waits_per_step") < ORDINARY_WAITS
    return Finding(
        "launch_bound",
        fired,
        f"with its batch resident the GPU computes {seen.busy_alone:.0%} of the time",
        "launch less often: compile, CUDA graphs, a larger batch",
        overrides=("callbacks.acceleration.compile=true", "callbacks.acceleration.compile_mode=reduce-overhead"),
        gain=_gain(seen, seen.gpu / seen.busy_alone) if fired else None,
    )


def slow_logging(seen: Evidence) -> Finding:
    return _stall(
        seen,
        "slow_logging",
        "logging",
        "log less often, or to a faster place",
        (f"trainer.log_every_n_steps={10 * int(seen.facts.get('log_every_n_steps', 20))}",),
    )


def checkpoint_stall(seen: Evidence) -> Finding:
    remedy = "write checkpoints by the clock, to a faster disk"
    overrides = ("checkpoint.every_n_steps=null", "checkpoint.every_minutes=15")
    return _stall(seen, "checkpoint_stall", "checkpoint", remedy, overrides)


def slow_callback(seen: Evidence) -> Finding:
    callbacks = {name: seconds for name, seconds in seen.phases.items() if name.startswith("callback ")}
    slowest = max(callbacks, key=lambda name: callbacks[name], default="callback")
    name = slowest.removeprefix("callback ")
    found = _stall(seen, "slow_callback", slowest, f"call {name} less often, or leave it out", ())
    return replace(found, fired=False, gain=None) if host_sync(seen).fired else found  # it waits for the GPU


def storage_latency(seen: Evidence) -> Finding:
    late, deep = seen.fact("storage_latency_seconds"), seen.fact("depth")
    fired = is_slow_reading(seen) and not _lazy(seen) and seen.texts.get("storage_bound") != "bandwidth"
    return Finding(
        "storage_latency",
        fired,
        f"files arrive {1000 * late:.0f} ms after they are asked for, {deep:.0f} in flight: {seen.loader:.0f} img/s",
        "ask for more at a time, or pack the data into shards on a faster disk",
        overrides=() if seen.texts.get("reads_in_flight") == "auto" else ("data.reads_in_flight=auto",),
        commands=(_PACK,),
        gain=_mended(seen, seen.decode) if fired else None,
    )


def storage_bandwidth(seen: Evidence) -> Finding:
    rate = seen.storage * seen.fact("mb_per_image")
    fired = is_slow_reading(seen) and not _lazy(seen) and seen.texts.get("storage_bound") == "bandwidth"
    return Finding(
        "storage_bandwidth",
        fired,
        f"storage gives {rate:.0f} MB/s however many files are asked for at a time: {seen.storage:.0f} img/s",
        "pack the images smaller (max_side), or onto a local disk",
        commands=(f"{_PACK} max_side=400",),
        gain=_mended(seen, seen.decode) if fired else None,
    )


def lazy_mount(seen: Evidence) -> Finding:
    first, second = seen.fact("first_touch_seconds"), seen.fact("second_touch_seconds")
    fired = is_slow_reading(seen) and _lazy(seen)
    return Finding(
        "lazy_mount",
        fired,
        f"files take {1000 * first:.0f} ms at their first touch, {1000 * second:.0f} ms at their second, out of memory",
        "fetch every file once before training, or pack the data onto a local disk",
        commands=("imagenet-opt hydrate data.root=...", _PACK),
        gain=_mended(seen, seen.decode) if fired else None,
    )


def busy_neighbour(seen: Evidence) -> Finding:
    usable, others = seen.facts["usable_cpus"], seen.fact("others_cpus")
    crowded = others >= OTHERS_SHARE * usable
    other = is_slow_reading(seen) or _stalls(seen) or host_sync(seen).fired or small_prefetch(seen).fired
    fired = crowded and seen.busy < BUSY_ENOUGH and not other
    return Finding(
        "busy_neighbour",
        fired,
        f"other processes take {others:.1f} of {usable:.0f} usable CPUs: {seen.texts.get('others', 'none that shows')}",
        "end or move them, or ask for CPUs of your own",
        gain=min(usable / max(0.1, usable - others), _most(seen)) if fired else None,
    )


def few_workers(seen: Evidence) -> Finding:
    workers, usable = seen.facts["num_workers"], max(1.0, seen.facts["usable_cpus"])
    most = max((rate for count, rate in seen.curves.get("workers", ()) if count > workers), default=0.0)
    together = usable / (seen.fact("main_cpu_seconds") / seen.batch_size + usable / most) if most else 0.0
    fired = (
        is_short_of_cpu(seen)
        and not busy_neighbour(seen).fired
        and workers < usable
        and most * SLOWER > seen.decode
        and together * SLOWER > seen.measured
    )
    words = "1 loader worker decodes" if workers == 1 else f"{workers:.0f} loader workers decode"
    return Finding(
        "few_workers",
        fired,
        f"{words} {seen.decode:.0f} img/s; {usable:.0f} usable CPUs" + (f" would decode {most:.0f}" if most else ""),
        "one worker a usable CPU",
        overrides=(f"data.num_workers={usable:.0f}",),
        gain=max(1.0, min(together / seen.measured, _most(seen))) if fired else None,
    )


def few_cpus(seen: Evidence) -> Finding:
    usable, there = seen.facts["usable_cpus"], seen.facts["machine_cpus"]
    others = busy_neighbour(seen).fired or few_workers(seen).fired
    fired = is_short_of_cpu(seen) and usable < there and not others
    return Finding(
        "few_cpus",
        fired,
        f"the job may use {usable:.0f} of the machine's {there:.0f} CPUs ({seen.texts.get('cpu_limit', 'no limit')})",
        "ask for all of them, such as srun --cpus-per-task, docker --cpus, taskset",
        gain=min(there / usable, _most(seen)) if fired else None,
    )


def slow_decode(seen: Evidence) -> Finding:
    pixels = seen.fact("megapixels")
    others = (busy_neighbour, few_workers, few_cpus)
    fired = (
        is_starved(seen)
        and is_short_of_cpu(seen)
        and not is_ample(seen)
        and not any(rule(seen).fired for rule in others)
    )
    return Finding(
        "slow_decode",
        fired,
        f"workers on all {seen.facts['usable_cpus']:.0f} usable CPUs decode {seen.decode:.0f} img/s of {pixels:.1f} MP",
        "pack the images smaller (max_side), let the GPU resize (data.resize_on=device), or take more CPUs",
        overrides=("data.resize_on=device",) if seen.texts.get("resize_on") == "worker" else (),
        commands=(f"{_PACK} max_side=500",),
        gain=max(1.0, min(seen.gpu_beside_loader, seen.copy) / seen.measured) if fired else None,
    )


def small_prefetch(seen: Evidence) -> Finding:
    ahead, workers = seen.facts["prefetch_factor"], max(1.0, seen.facts["num_workers"])
    gap = seen.ceilings[f"loader_{seen.state}"].facts.get("longest_gap_seconds", 0.0)
    is_enough = is_ample(seen) or (not is_slow_reading(seen) and not is_short_of_cpu(seen))
    fired = is_starved(seen) and bool(ahead) and is_enough and not is_crowded(seen)
    return Finding(
        "small_prefetch",
        fired,
        f"the loader gives {seen.loader:.0f} img/s on average, with pauses of up to {1000 * gap:.0f} ms; "
        f"{ahead:.0f} batches a worker are made ahead",
        "more batches ahead",
        overrides=(f"data.prefetch_factor={max(4 * int(ahead), math.ceil(1.5 * gap / seen.step / workers))}",),
        gain=_until(seen) if fired else None,
    )


def slow_copy(seen: Evidence) -> Finding:
    computes = seen.batch_size / seen.ceilings["gpu"].facts["device_seconds"]
    fired = seen.copy < SLOWER * computes and seen.busy < BUSY_ENOUGH and not is_starved(seen)
    return Finding(
        "slow_copy",
        fired,
        "there is no copy" if seen.copy == float("inf") else f"the copy to the GPU manages {seen.copy:.0f} img/s",
        "look at the PCIe link; send uint8 crops, not float images",
        overrides=("data.resize_on=device",) if seen.texts.get("resize_on") == "worker" else (),
        gain=_gain(seen, computes) if fired else None,
    )


def contention(seen: Evidence) -> Finding:
    others = (busy_neighbour, few_cpus, slow_decode)
    fired = is_crowded(seen) and not any(rule(seen).fired for rule in others)
    return Finding(
        "contention",
        fired,
        f"beside the loader the GPU trains {seen.gpu_beside_loader:.0f} img/s, alone {seen.gpu:.0f}",
        "leave the training process a CPU",
        overrides=(f"data.num_workers={max(1, int(seen.facts['num_workers']) - 1)}",),
        gain=_until(seen) if fired else None,
    )


RULES: tuple[Rule, ...] = (
    *(slow_gpu, checkpoint_stall, slow_logging, slow_callback, host_sync),
    *(lazy_mount, storage_bandwidth, storage_latency, small_prefetch, slow_copy),
    *(busy_neighbour, few_workers, few_cpus, slow_decode, launch_bound, contention),
)
"""The first that fires is the cause."""

_PACK = "imagenet-opt pack data.root=... out=/nvme/imagenet"
_RECORD = "imagenet-opt doctor --record-profile keeps what a GPU does when all is well"


def _holds_up(seen: Evidence, phase: str) -> bool:
    """Whether this, more than all else that the main process does, explains the idle GPU."""
    seconds = seen.phases.get(phase, 0.0)
    rivals = [other for name, other in seen.phases.items() if name not in (phase, "step", "device")]
    share = seconds / seen.idle if seen.idle else 0.0
    return seen.busy < BUSY_ENOUGH and share >= MAIN_SHARE and seconds > max(rivals, default=0.0)


def _stall(seen: Evidence, rule: str, phase: str, remedy: str, overrides: tuple[str, ...]) -> Finding:
    seconds = seen.phases.get(phase, 0.0)
    fired = _holds_up(seen, phase)
    step, idle = 1000 * seen.step, 1000 * seen.idle
    says = f"{phase} takes {1000 * seconds:.1f} ms of a step of {step:.0f} ms, in which the GPU idles for {idle:.0f}"
    return Finding(rule, fired, says, remedy, overrides, gain=_until(seen) if fired else None)


def _stalls(seen: Evidence) -> bool:
    return bool(slow_logging(seen).fired or checkpoint_stall(seen).fired or slow_callback(seen).fired)


def _lazy(seen: Evidence) -> bool:
    return bool(seen.fact("lazy"))


def _mended(seen: Evidence, rate: float) -> float:
    """Gain when the loader gives `rate`, as far as CPUs and the other stages allow."""
    return max(1.0, min(rate, seen.cpu_budget, seen.gpu_beside_loader, seen.copy) / seen.measured)


def _until(seen: Evidence) -> float:
    """Gain when what stands between the ceilings and the run is gone."""
    return _gain(seen, seen.gpu_beside_loader)


def _most(seen: Evidence) -> float:
    """Gain up to the GPU alone, with CPUs in plenty."""
    return max(1.0, min(seen.gpu, seen.copy) / seen.measured)


def _gain(seen: Evidence, rate: float) -> float:
    """Gain when the GPU takes `rate`, as far as the loader and the copy allow."""
    return max(1.0, min(rate, seen.supply, seen.copy) / seen.measured)
