"""Causes in the CPUs: other processes use them, the job may use too few, or decoding needs more."""

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.cpus import more_cpus
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, SLOWER, Evidence
from imagenet_opt.doctor.gains import cpus_gain, gpu_gain, most_gain, pack_gain
from imagenet_opt.doctor.remedies import list_processes, smaller_pack
from imagenet_opt.doctor.symptoms import (
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
    names = evidence.facts.others_names or ""
    fired = has_neighbours(evidence) and evidence.busy_share < BUSY_ENOUGH and not is_slow_reading(evidence)
    return Finding(
        "busy_neighbour",
        fired,
        f"other processes take {others:.1f} of {usable} usable CPUs: {names or 'no such process is visible'}",
        "stop or move these processes, or request CPUs that no other job uses",
        commands=(list_processes(names),),
        gain=min(usable / max(0.1, usable - others), most_gain(evidence)) if fired else None,
    )


def few_workers(evidence: Evidence) -> Finding:
    workers, usable = evidence.facts.num_workers, max(1, evidence.facts.usable_cpus)
    rates = [rate for count, rate in evidence.measurements.curves.get("workers", ()) if count > workers]
    most, together = max(rates, default=0.0), 0.0
    if most:
        main_seconds = (evidence.facts.main_cpu_seconds or 0.0) / evidence.measurements.batch_size
        together = usable / (main_seconds + usable / most)
    helps = most * SLOWER > evidence.rate("decode_all") and together * SLOWER > evidence.measured_rate
    fired = is_short_of_cpu(evidence) and workers < usable and helps
    decoding = "1 loader worker decodes" if workers == 1 else f"{workers} loader workers decode"
    return Finding(
        "few_workers",
        fired,
        f"{decoding} {evidence.rate('decode_all'):.0f} img/s; {usable} usable CPUs"
        + (f" would decode {most:.0f}" if most else ""),
        "use one worker per usable CPU",
        overrides=(f"data.num_workers={usable}",),
        gain=max(1.0, min(together / evidence.measured_rate, most_gain(evidence))) if fired else None,
    )


def few_cpus(evidence: Evidence) -> Finding:
    usable, installed = evidence.facts.usable_cpus, evidence.facts.machine_cpus
    limit = evidence.facts.cpu_limit or "no limit"
    fired = is_short_of_cpu(evidence) and usable < installed
    return Finding(
        "few_cpus",
        fired,
        f"the job may use {usable} of the machine's {installed} CPUs ({limit})",
        "request all CPUs of the machine for the job",
        commands=(more_cpus(limit, installed, in_slurm=evidence.facts.in_slurm),),
        gain=cpus_gain(evidence, installed) if fired else None,
    )


def slow_decode(evidence: Evidence) -> Finding:
    facts = evidence.facts
    fired = is_starved(evidence) and is_short_of_cpu(evidence) and not is_ample(evidence)
    text = f"workers on all {facts.usable_cpus} usable CPUs decode {evidence.rate('decode_all'):.0f} img/s"
    text += f" of {facts.megapixels or 0.0:.1f} MP"
    if is_reading_on_cpu(evidence):
        text += f", and one process, limited by its CPU, reads {evidence.rate('storage'):.0f} img/s"
    has_device = bool(evidence.measurements.simulated or facts.has_gpu)
    overrides = ("data.resize_on=device",) if has_device and facts.resize_on == "worker" else ()
    resize = "let the GPU resize (data.resize_on=device), " if overrides else ""
    speedup = facts.pack_speedup
    measured = f" ({speedup:.1f} times as many img/s per worker, measured with some images)" if speedup else ""
    remedy = f"pack smaller images{measured}, {resize}or use more CPUs"
    gain = pack_gain(evidence) if fired else None
    return Finding("slow_decode", fired, text, remedy, overrides, (smaller_pack(evidence),), gain)


def contention(evidence: Evidence) -> Finding:
    fewer = evidence.facts.num_workers - 1
    remedy, commands = ("leave one CPU for the training process", ()) if fewer > 0 else _one_more_cpu(evidence)
    fired, helps = is_crowded(evidence), fewer > 0
    alone, beside = evidence.rate("gpu"), evidence.rate("gpu_beside_loader")
    # With one worker less, the GPU reaches its full rate, and the loader is slower.
    rate = min(alone, evidence.rate("loader") * fewer / (fewer + 1)) if helps else 0.0
    return Finding(
        "contention",
        fired,
        f"{evidence.device} trains {alone:.0f} img/s alone, {beside:.0f} img/s while the loader runs",
        remedy,
        overrides=(f"data.num_workers={fewer}",) if helps else (),
        commands=commands,
        gain=gpu_gain(evidence, rate) if fired and helps else None,
    )


def _one_more_cpu(evidence: Evidence) -> tuple[str, tuple[str, ...]]:
    """Remedy and commands for a loader with one worker; `few_cpus` covers machines with further CPUs."""
    if evidence.facts.in_slurm:
        num = evidence.facts.usable_cpus + 1
        return "give the job one CPU more than the loader uses", (f"#SBATCH --cpus-per-task={num}",)
    return "pack smaller images, or use a machine with more CPUs", (smaller_pack(evidence),)
