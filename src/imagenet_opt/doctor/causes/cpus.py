"""Causes among the CPUs: who takes them, how many there are, and what the loader needs of them."""

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.cpus import more_cpus
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import cpus_gain, gpu_gain, most_gain
from imagenet_opt.doctor.remedies import data_place, look_at
from imagenet_opt.doctor.symptoms import (
    SLOWER,
    has_neighbours,
    is_ample,
    is_crowded,
    is_reading_on_cpu,
    is_short_of_cpu,
    is_slow_reading,
    is_starved,
)


def busy_neighbour(seen: Evidence) -> Finding:
    usable, others = seen.facts.usable_cpus, seen.facts.others_cpus or 0.0
    fired = has_neighbours(seen) and seen.busy < BUSY_ENOUGH and not is_slow_reading(seen)
    return Finding(
        "busy_neighbour",
        fired,
        f"other processes take {others:.1f} of {usable} usable CPUs: {seen.facts.others_names or 'none that shows'}",
        "end or move them, or ask for CPUs of your own",
        commands=(look_at(seen.facts.others_names or ""),),
        gain=min(usable / max(0.1, usable - others), most_gain(seen)) if fired else None,
    )


def few_workers(seen: Evidence) -> Finding:
    workers, usable = seen.facts.num_workers, max(1, seen.facts.usable_cpus)
    most = max((rate for count, rate in seen.curves.get("workers", ()) if count > workers), default=0.0)
    together = usable / ((seen.facts.main_cpu_seconds or 0.0) / seen.batch_size + usable / most) if most else 0.0
    fired = (
        is_short_of_cpu(seen) and workers < usable and most * SLOWER > seen.decode and together * SLOWER > seen.measured
    )
    words = "1 loader worker decodes" if workers == 1 else f"{workers} loader workers decode"
    return Finding(
        "few_workers",
        fired,
        f"{words} {seen.decode:.0f} img/s; {usable} usable CPUs" + (f" would decode {most:.0f}" if most else ""),
        "one worker a usable CPU",
        overrides=(f"data.num_workers={usable}",),
        gain=max(1.0, min(together / seen.measured, most_gain(seen))) if fired else None,
    )


def few_cpus(seen: Evidence) -> Finding:
    usable, there = seen.facts.usable_cpus, seen.facts.machine_cpus
    limit = seen.facts.cpu_limit or "no limit"
    fired = is_short_of_cpu(seen) and usable < there
    return Finding(
        "few_cpus",
        fired,
        f"the job may use {usable} of the machine's {there} CPUs ({limit})",
        "ask for all of them",
        commands=(more_cpus(limit, there, in_slurm=seen.facts.in_slurm),),
        gain=cpus_gain(seen, there) if fired else None,
    )


def slow_decode(seen: Evidence) -> Finding:
    pixels = seen.facts.megapixels or 0.0
    fired = is_starved(seen) and is_short_of_cpu(seen) and not is_ample(seen)
    says = f"workers on all {seen.facts.usable_cpus} usable CPUs decode {seen.decode:.0f} img/s of {pixels:.1f} MP"
    reads = f", and one process reads {seen.storage:.0f} img/s, its CPU busy" if is_reading_on_cpu(seen) else ""
    device = seen.simulated or seen.facts.has_gpu
    here = bool(device) and seen.facts.resize_on == "worker"
    resize = "let the GPU resize (data.resize_on=device), " if here else ""
    return Finding(
        "slow_decode",
        fired,
        says + reads,
        f"pack the images smaller (max_side), {resize}or take more CPUs",
        overrides=("data.resize_on=device",) if here else (),
        commands=(data_place(seen).pack("max_side=500"),),
    )


def contention(seen: Evidence) -> Finding:
    workers = seen.facts.num_workers
    fired = is_crowded(seen)
    fewer = (f"data.num_workers={workers - 1}",) if workers > 1 else ()
    one_more = f"#SBATCH --cpus-per-task={seen.facts.usable_cpus + 1}"
    return Finding(
        "contention",
        fired,
        f"beside the loader the GPU trains {seen.gpu_beside_loader:.0f} img/s, alone {seen.gpu:.0f}",
        "leave the training process a CPU" if fewer else "give the job a CPU more than the loader takes",
        overrides=fewer,
        commands=() if fewer else (one_more,),
        gain=_with_fewer_workers(seen, workers - 1) if fired and fewer else None,
    )


def _with_fewer_workers(seen: Evidence, workers: int) -> float:
    """The GPU as if it were alone, and a loader that gives as much less."""
    loader = seen.loader * workers / (workers + 1)
    return gpu_gain(seen, min(seen.gpu, loader))
