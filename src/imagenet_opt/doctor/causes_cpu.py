"""Causes in the CPUs, and in the batches that the loader prepares ahead."""

import math

from imagenet_opt.doctor.causes_gpu import gpu_gain, has_neighbours, stages_gain
from imagenet_opt.doctor.commands import Texts, smaller_pack
from imagenet_opt.doctor.diagnosis import Rule
from imagenet_opt.doctor.environment import SMALL_MEMORY
from imagenet_opt.doctor.evidence import AMPLE, BUSY_ENOUGH, SLOWER, Evidence

_LEAST_GAIN = 1.05  # least predicted gain for which the doctor advises to prefetch more batches


def _is_short_of_cpu(e: Evidence) -> bool:
    """Whether decoding is slower than the GPU, or the training process lacks CPU time."""
    reads_on_cpu = e.is_held_by_reads and not e.is_slow_reading
    is_slow = min(e.rate("decode_all"), e.cpu_rate) < AMPLE * e.rate("gpu") or reads_on_cpu
    return (is_slow and e.is_starved and not e.is_ample and not e.is_slow_reading) or _is_crowded(e)


def _is_crowded(e: Evidence) -> bool:
    """Whether the running loader slows down the GPU's steps."""
    is_slower = e.rate("gpu_beside_loader") < SLOWER * e.rate("gpu")
    return is_slower and e.busy_share < BUSY_ENOUGH and not e.is_slow_reading


def _pauses(e: Evidence) -> bool:
    """Whether the loader is fast enough on average, but batches come late."""
    is_enough = e.is_ample or (not e.is_slow_reading and not _is_short_of_cpu(e))
    helps = bool(e.setup.prefetch_factor) and stages_gain(e) >= _LEAST_GAIN
    return e.is_starved and is_enough and helps and not _is_crowded(e)


def _is_cut(e: Evidence) -> bool:
    """Whether the loader has less than it was asked for, for lack of memory, and the run needs it."""
    needs_workers = e.setup.num_workers < e.setup.asked_workers and _is_short_of_cpu(e)
    return e.setup.lacks_memory and (needs_workers or _pauses(e))


def _enough_ahead(e: Evidence) -> Texts:
    gap_steps = 1.5 * e.longest_gap_seconds / e.run_seconds
    enough = max(4 * e.setup.prefetch_factor, math.ceil(gap_steps / max(1, e.setup.num_workers)))
    return (f"data.prefetch_factor={enough}",)


BATCH_RULES = (
    Rule(
        name="little_memory",
        cause="Loader-bound: memory allows fewer workers or batches ahead than the loader should have",
        when=_is_cut,
        says=lambda e: f"{SMALL_MEMORY.says(e)}, which give {e.rate('loader'):.0f} img/s",
        remedy=SMALL_MEMORY.remedy,
        commands=SMALL_MEMORY.commands,
    ),
    Rule(
        name="small_prefetch",
        cause="Loader-bound: too few batches are prepared ahead",
        when=_pauses,
        says=lambda e: (
            f"the loader gives {e.rate('loader'):.0f} img/s on average, with pauses of up to "
            f"{1000 * e.longest_gap_seconds:.0f} ms; each worker prepares {e.setup.prefetch_factor} batches ahead"
        ),
        remedy="prepare more batches ahead",
        overrides=_enough_ahead,
        gain=stages_gain,
    ),
)

# The CPUs


def _most_gain(e: Evidence) -> float:
    """Gain with unlimited CPUs: the run then reaches the rate of the GPU alone."""
    return max(1.0, min(e.rate("gpu"), e.copy_rate) / e.measured_rate)


def _neighbour_gain(e: Evidence) -> float:
    usable = e.host.usable_cpus
    return min(usable / max(0.1, usable - e.others_cpus), _most_gain(e))


def _with_more_workers(e: Evidence) -> float:
    """Images per second that more workers decode, if they were measured; else 0."""
    return max((rate for count, rate in e.curves.get("workers", ()) if count > e.setup.num_workers), default=0.0)


def _workers_together(e: Evidence) -> float:
    """Rate at which one worker per usable CPU and the training process together use all CPUs."""
    most = _with_more_workers(e)
    return e.cpu_rate_with(most, e.setup.usable_cpus) if most else 0.0


def _needs_workers(e: Evidence) -> bool:
    helps = SLOWER * _with_more_workers(e) > e.rate("decode_all") and SLOWER * _workers_together(e) > e.measured_rate
    return _is_short_of_cpu(e) and e.setup.num_workers < e.setup.usable_cpus and helps


def _decode_says(e: Evidence) -> str:
    text = f"{e.setup.num_workers} loader workers decode {e.rate('decode_all'):.0f} img/s of {e.mb_per_image:.2g} MB"
    text += f"; {e.setup.usable_cpus} usable CPUs"
    return text + f" would decode {_with_more_workers(e):.0f}" * bool(_with_more_workers(e))


def _decode_overrides(e: Evidence) -> Texts:
    has_device = bool(e.simulated or e.setup.has_gpu)
    resize = ("data.resize_on=device",) if has_device and e.setup.resize_on == "worker" else ()
    more = _with_more_workers(e) > e.rate("decode_all")
    return (*resize, *((f"data.num_workers={e.setup.usable_cpus}",) if more else ()))


def _decode_remedy(e: Evidence) -> str:
    speedup = e.pack and f" ({e.pack.speedup:.1f} times as many img/s per worker, measured with some images)"
    return f"pack smaller images{speedup or ''}, or use more CPUs"


def _pack_gain(e: Evidence) -> float | None:
    """Gain if packed images are decoded as fast as the doctor forecasts; None without a forecast."""
    if e.pack is None:
        return None
    speedup = e.pack.speedup
    supply = min(e.rate("loader") * speedup, e.cpu_rate_with(e.rate("decode_all") * speedup))
    return max(1.0, min(supply, e.fed_rate) / e.measured_rate)


CPU_RULES = (
    Rule(
        name="busy_neighbour",
        cause="CPU-bound: other processes take the CPUs",
        when=lambda e: has_neighbours(e) and e.busy_share < BUSY_ENOUGH and not e.is_slow_reading,
        says=lambda e: f"other processes take {e.others_cpus:.1f} of {e.host.usable_cpus} usable CPUs",
        remedy="stop or move these processes, or request CPUs that no other job uses",
        commands=lambda e: ("top -b -n 1 -o %CPU | head -n 17",),
        gain=_neighbour_gain,
    ),
    Rule(
        name="few_workers",
        cause="Loader-bound: fewer loader workers than CPUs",
        when=_needs_workers,
        says=_decode_says,
        remedy="use one worker per usable CPU",
        overrides=lambda e: (f"data.num_workers={e.setup.usable_cpus}",),
        gain=lambda e: max(1.0, min(_workers_together(e) / e.measured_rate, _most_gain(e))),
    ),
    Rule(
        name="few_cpus",
        cause="CPU-bound: the job may use only some of the CPUs",
        when=lambda e: _is_short_of_cpu(e) and e.host.usable_cpus < e.host.installed_cpus,
        says=lambda e: (
            f"this job may use {e.host.usable_cpus} of {e.host.installed_cpus} CPUs: "
            f"{', '.join(f'{name} allows {cpus}' for name, cpus in e.host.cpu_limits.items())}"
        ),
        remedy="start the job with more CPUs: without taskset or numactl, with docker run --cpus, with "
        "sbatch --cpus-per-task (without it, SLURM gives a task one CPU)",
        gain=lambda e: min(e.host.installed_cpus / e.host.usable_cpus, _most_gain(e)),
    ),
    Rule(
        name="slow_decode",
        cause="CPU-bound: decoding takes the CPUs",
        when=lambda e: e.is_starved and _is_short_of_cpu(e) and not e.is_ample,
        says=_decode_says,
        remedy=_decode_remedy,
        overrides=_decode_overrides,
        commands=lambda e: (smaller_pack(e),),
        gain=_pack_gain,
    ),
)
CONTENTION = Rule(
    name="contention",
    cause="CPU-bound: the loader takes CPU time that the training process needs",
    when=_is_crowded,
    says=lambda e: (
        f"{e.device} trains {e.rate('gpu'):.0f} img/s alone, {e.rate('gpu_beside_loader'):.0f} img/s while the "
        "loader runs"
    ),
    remedy="leave one CPU for the training process: one worker less, smaller packed images, or more CPUs",
    overrides=lambda e: (f"data.num_workers={e.setup.num_workers - 1}",) if e.setup.num_workers > 1 else (),
    commands=lambda e: (smaller_pack(e),),
    gain=lambda e: gpu_gain(e, e.rate("gpu")),
)
