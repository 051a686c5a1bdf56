"""Causes among the CPUs: who takes them, how many there are, and how many the loader needs."""

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.cpus import more_cpus
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import cpus_gain, gpu_gain, most_gain, pack_gain
from imagenet_opt.doctor.remedies import list_processes, smaller_pack
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


def busy_neighbour(evidence: Evidence) -> Finding:
    usable, others = evidence.facts.usable_cpus, evidence.facts.others_cpus or 0.0
    names = evidence.facts.others_names
    fired = has_neighbours(evidence) and evidence.busy_share < BUSY_ENOUGH and not is_slow_reading(evidence)
    return Finding(
        "busy_neighbour",
        fired,
        f"other processes take {others:.1f} of {usable} usable CPUs: {names or 'their processes are not visible'}",
        "stop or move these processes, or request CPUs that no other job uses",
        commands=(list_processes(names or ""),),
        gain=min(usable / max(0.1, usable - others), most_gain(evidence)) if fired else None,
    )


def few_workers(evidence: Evidence) -> Finding:
    workers, usable = evidence.facts.num_workers, max(1, evidence.facts.usable_cpus)
    most = max(
        (rate for count, rate in evidence.measurements.curves.get("workers", ()) if count > workers), default=0.0
    )
    together = (
        usable / ((evidence.facts.main_cpu_seconds or 0.0) / evidence.measurements.batch_size + usable / most)
        if most
        else 0.0
    )
    fired = (
        is_short_of_cpu(evidence)
        and workers < usable
        and most * SLOWER > evidence.decode_rate
        and together * SLOWER > evidence.measured_rate
    )
    words = "1 loader worker decodes" if workers == 1 else f"{workers} loader workers decode"
    return Finding(
        "few_workers",
        fired,
        f"{words} {evidence.decode_rate:.0f} img/s; {usable} usable CPUs"
        + (f" would decode {most:.0f}" if most else ""),
        "use one worker per usable CPU",
        overrides=(f"data.num_workers={usable}",),
        gain=max(1.0, min(together / evidence.measured_rate, most_gain(evidence))) if fired else None,
    )


def few_cpus(evidence: Evidence) -> Finding:
    usable, there = evidence.facts.usable_cpus, evidence.facts.machine_cpus
    limit = evidence.facts.cpu_limit or "no limit"
    fired = is_short_of_cpu(evidence) and usable < there
    return Finding(
        "few_cpus",
        fired,
        f"the job may use {usable} of the machine's {there} CPUs ({limit})",
        "ask for all of them",
        commands=(more_cpus(limit, there, in_slurm=evidence.facts.in_slurm),),
        gain=cpus_gain(evidence, there) if fired else None,
    )


def slow_decode(evidence: Evidence) -> Finding:
    pixels, usable = evidence.facts.megapixels or 0.0, evidence.facts.usable_cpus
    fired = is_starved(evidence) and is_short_of_cpu(evidence) and not is_ample(evidence)
    decoding = f"workers on all {usable} usable CPUs decode {evidence.decode_rate:.0f} img/s of {pixels:.1f} MP"
    reads = (
        f", and one process, limited by its CPU, reads {evidence.storage_rate:.0f} img/s"
        if is_reading_on_cpu(evidence)
        else ""
    )
    device = evidence.measurements.simulated or evidence.facts.has_gpu
    here = bool(device) and evidence.facts.resize_on == "worker"
    resize = "let the GPU resize (data.resize_on=device), " if here else ""
    return Finding(
        "slow_decode",
        fired,
        decoding + reads,
        f"pack the images smaller{_of_forecast(evidence)}, {resize}or take more CPUs",
        overrides=("data.resize_on=device",) if here else (),
        commands=(smaller_pack(evidence),),
        gain=pack_gain(evidence) if fired else None,
    )


def _of_forecast(evidence: Evidence) -> str:
    speedup = evidence.facts.pack_speedup
    return f" (measured with some of them: {speedup:.1f} x img/s a worker)" if speedup else ""


def contention(evidence: Evidence) -> Finding:
    workers = evidence.facts.num_workers
    fired = is_crowded(evidence)
    fewer = (f"data.num_workers={workers - 1}",) if workers > 1 else ()
    one_more = f"#SBATCH --cpus-per-task={evidence.facts.usable_cpus + 1}"
    return Finding(
        "contention",
        fired,
        f"beside the loader the GPU trains {evidence.gpu_beside_loader_rate:.0f} img/s, alone {evidence.gpu_rate:.0f}",
        "leave one CPU for the training process" if fewer else "give the job one CPU more than the loader uses",
        overrides=fewer,
        commands=() if fewer else (one_more,),
        gain=_with_fewer_workers(evidence, workers - 1) if fired and fewer else None,
    )


def _with_fewer_workers(evidence: Evidence, workers: int) -> float:
    """Gain if the GPU ran at its full rate, with the loader slowed to fewer workers."""
    loader = evidence.loader_rate * workers / (workers + 1)
    return gpu_gain(evidence, min(evidence.gpu_rate, loader))
