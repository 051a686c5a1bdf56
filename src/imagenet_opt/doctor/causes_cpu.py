"""Causes in the CPUs, and in the batches that the loader prepares ahead."""

import math

from imagenet_opt.doctor.causes_gpu import kernel_rate
from imagenet_opt.doctor.commands import Texts, smaller_pack
from imagenet_opt.doctor.environment import SMALL_MEMORY
from imagenet_opt.doctor.evidence import Evidence, Reach
from imagenet_opt.doctor.rule import Rule
from imagenet_opt.doctor.thresholds import AGREES, AMPLE, SLOWER
from imagenet_opt.measure.stats.verdict import LEAST_GAIN
from imagenet_opt.measure.telemetry.proc_counters import OTHERS_SHARE

_NO_TIME = 1e9  # times as fast: decoding then takes no time
NO_RUN_QUEUE = (
    "could not be checked: this system does not report how long threads wait for a CPU (/proc/thread-self/schedstat)"
)


def _pauses(e: Evidence) -> bool:
    """Whether the loader is fast enough on average, but batches come late."""
    is_ample = min(e.rate("loader"), e.cpu_rate) >= AMPLE * e.rate("gpu_beside_loader")
    return e.is_starved and is_ample and bool(e.setup.prefetch_factor)


def _lacks_workers(e: Evidence) -> bool:
    return e.setup.num_workers < e.setup.budget.asked_workers


def _with_memory(e: Evidence) -> Reach:
    """The run with all workers and batches ahead that were asked for."""
    if not _lacks_workers(e):
        return e.expected
    asked = e.setup.budget.asked_workers
    decode = e.rate("decode_all") * e.capacity(asked) / e.capacity(max(1, e.setup.num_workers))
    return e.reach(loader=math.inf, decode=decode, cpu=e.cpu_rate_with(decode, asked))


def _enough_ahead(e: Evidence) -> Texts:
    gap_steps = 1.5 * e.longest_gap_seconds / e.run_seconds
    enough = max(4 * e.setup.prefetch_factor, math.ceil(gap_steps / max(1, e.setup.num_workers)))
    return (f"data.prefetch_factor={enough}",)


BATCH_RULES = (
    Rule(
        name="little_memory",
        cause="Loader-bound: memory allows fewer workers or batches ahead than the loader should have",
        frees="cpu",
        when=lambda e: e.is_idle and e.setup.budget.is_cut and (_lacks_workers(e) or _pauses(e)),
        says=lambda e: f"{SMALL_MEMORY.says(e)}, which give {e.rate('loader'):.0f} img/s",
        remedy=SMALL_MEMORY.remedy,
        commands=SMALL_MEMORY.commands,
        reaches=_with_memory,
        rate=lambda e: None if _lacks_workers(e) else e.measured_rate,
    ),
    Rule(
        name="small_prefetch",
        cause="Loader-bound: too few batches are prepared ahead",
        frees="pauses",
        when=_pauses,
        says=lambda e: (
            f"the loader gives {e.rate('loader'):.0f} img/s on average, with pauses of up to "
            f"{1000 * e.longest_gap_seconds:.0f} ms; each worker prepares {e.setup.prefetch_factor} batches ahead"
        ),
        remedy="prepare more batches ahead",
        overrides=_enough_ahead,
        reaches=lambda e: e.expected,
        rate=lambda e: e.measured_rate,
    ),
)

# The CPUs


def _others_slow_down(e: Evidence) -> float:
    """How many times as fast a worker computes without its waits for a CPU; workers that outnumber the CPUs wait for
    each other too."""
    return max(1.0, e.worker_slowdown / max(1.0, e.setup.num_workers / e.setup.usable_cpus))


def _with_cpus(e: Evidence, times: float, launches: float) -> Reach:
    """The run if CPUs did so many times as much for the workers, and for the launches of the main thread."""
    return e.reach(
        loader=e.loader_with(times),
        cpu=e.cpu_rate * times,
        device=max(e.rate("gpu"), min(kernel_rate(e), launches * e.rate("gpu"))),
    )


def _with_more_cpus(e: Evidence) -> Reach:
    times = e.capacity(e.host.installed_cpus) / e.capacity(e.host.usable_cpus)
    return _with_cpus(e, times, times)


def _with_more_workers(e: Evidence) -> float:
    """Images per second that more workers decode, if they were measured; else 0."""
    return max((rate for count, rate in e.curves.get("workers", ()) if count > e.setup.num_workers), default=0.0)


def _with_workers(e: Evidence) -> Reach:
    """The run with one worker per usable CPU."""
    most, usable = _with_more_workers(e), e.setup.usable_cpus
    return e.reach(num_workers=usable, loader=math.inf, decode=most, cpu=e.cpu_rate_with(most, usable))


def _decode_says(e: Evidence) -> str:
    num, more = e.setup.num_workers, _with_more_workers(e)
    workers = f"{num} loader worker{'' if num == 1 else 's'}"
    text = f"{workers} decode {e.rate('decode_all'):.0f} img/s of {e.mb_per_image:.2g} MB"
    return f"{text}; {e.setup.usable_cpus} usable CPUs would decode {more:.0f}" if more else text


def _decode_overrides(e: Evidence) -> Texts:
    has_device = bool(e.simulated or e.setup.has_gpu)
    resize = ("data.resize_on=device",) if has_device and e.setup.resize_on == "worker" else ()
    more = _with_more_workers(e) > e.rate("decode_all")
    return (*resize, *((f"data.num_workers={e.setup.usable_cpus}",) if more else ()))


def _decode_remedy(e: Evidence) -> str:
    if e.pack is None:
        return "pack smaller images, or use more CPUs"
    speedup = f"{e.pack.speedup:.1f} times as many img/s per worker, measured with some images"
    return f"pack smaller images ({speedup}), or use more CPUs" if _helps_to_pack(e) else "use more CPUs"


def _faster_decode(e: Evidence, speedup: float) -> Reach:
    decode = e.rate("decode_all") * speedup
    device = max(e.rate("gpu_beside_loader"), e.device_beside(decode))
    return e.reach(loader=e.loader_with(speedup), cpu=e.cpu_rate_with(decode), device=device)


def _helps_to_pack(e: Evidence) -> bool:
    """Whether smaller images would be decoded faster, as far as the doctor can forecast."""
    return e.pack is not None and _faster_decode(e, e.pack.speedup).rate >= LEAST_GAIN * e.reach().rate


def _packed(e: Evidence) -> Reach:
    """The run with packed images, as the doctor forecasts; without a forecast, if decoding took no time."""
    if e.pack is not None and _helps_to_pack(e):
        return _faster_decode(e, e.pack.speedup)
    free = e.cpu_rate_with(_NO_TIME * e.rate("decode_all"))
    return e.reach(loader=e.loader_with(_NO_TIME), cpu=free)


CPU_RULES = (
    Rule(
        name="busy_neighbour",
        cause="CPU-bound: other processes take the CPUs",
        frees="cpu",
        when=lambda e: e.others_cpus >= OTHERS_SHARE * e.host.usable_cpus and e.is_idle,
        unknown=lambda e: "" if e.setup.sees_run_queue else NO_RUN_QUEUE,
        says=lambda e: (
            f"other processes take {e.others_cpus:.1f} of {e.host.usable_cpus} usable CPUs, so that a worker takes "
            f"{e.worker_slowdown:.1f} times as long as it computes, and launches {e.main_slowdown:.1f} times as long"
        ),
        remedy="stop or move these processes, or request CPUs that no other job uses",
        commands=lambda e: ("top -b -n 1 -o %CPU | head -n 17",),
        reaches=lambda e: _with_cpus(e, _others_slow_down(e), e.main_slowdown),
    ),
    Rule(
        name="few_workers",
        cause="Loader-bound: fewer loader workers than CPUs",
        frees="cpu",
        when=lambda e: e.is_idle and SLOWER * _with_more_workers(e) > e.rate("decode_all"),
        says=_decode_says,
        remedy="use one worker per usable CPU",
        overrides=lambda e: (f"data.num_workers={e.setup.usable_cpus}",),
        reaches=_with_workers,
    ),
    Rule(
        name="few_cpus",
        cause="CPU-bound: the job may use only some of the CPUs",
        frees="cpu",
        when=lambda e: e.is_idle and e.host.usable_cpus < e.host.installed_cpus,
        says=lambda e: (
            f"this job may use {e.host.usable_cpus} of {e.host.installed_cpus} CPUs: "
            f"{', '.join(f'{name} allows {cpus}' for name, cpus in e.host.cpu_limits.items())}"
        ),
        remedy="start the job with more CPUs: without taskset or numactl, with docker run --cpus, with "
        "sbatch --cpus-per-task (without it, SLURM gives a task one CPU)",
        reaches=_with_more_cpus,
    ),
    Rule(
        name="slow_decode",
        cause="CPU-bound: decoding takes the CPUs",
        frees="cpu",
        when=lambda e: e.is_idle,
        says=_decode_says,
        remedy=_decode_remedy,
        overrides=_decode_overrides,
        commands=lambda e: (smaller_pack(e),) if e.pack is None or _helps_to_pack(e) else (),
        reaches=_packed,
        predicts=_helps_to_pack,
    ),
)
CONTENTION = Rule(
    name="contention",
    cause="CPU-bound: the loader takes CPU time that the training process needs",
    frees="cpu",
    when=lambda e: e.is_idle and e.rate("gpu_beside_loader") < AGREES * e.rate("gpu"),
    says=lambda e: (
        f"{e.device} trains {e.rate('gpu'):.0f} img/s alone, {e.rate('gpu_beside_loader'):.0f} img/s while the "
        "loader runs"
    ),
    remedy="leave one CPU for the training process: one worker less, smaller packed images, or more CPUs",
    overrides=lambda e: (f"data.num_workers={e.setup.num_workers - 1}",) if e.setup.num_workers > 1 else (),
    commands=lambda e: (smaller_pack(e),),
    reaches=lambda e: e.reach(device=e.rate("gpu")),
    predicts=lambda e: False,
)
