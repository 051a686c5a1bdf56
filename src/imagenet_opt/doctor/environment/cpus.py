"""Checks how many CPUs of the machine this job may use."""

from collections.abc import Mapping

from imagenet_opt.doctor.diagnosis import Finding


def check_cpus(limits: Mapping[str, int], *, installed: int, slurm: Mapping[str, str]) -> Finding:
    """Fires if the job may use fewer CPUs than are installed.

    limits: of `machine.cpu_limits`. slurm: environment variables; they name a SLURM job, if there is one.
    """
    usable = min(limits.values())
    if usable >= installed:
        return Finding("cpu_limits", False, f"this job may use all {installed} CPUs")
    binding = [name for name, cpus in limits.items() if cpus == usable]
    wider = "".join(f", {name} allows {cpus}" for name, cpus in limits.items() if usable < cpus < installed)
    evidence = f"this job may use {usable} of {installed} CPUs, because of {' and '.join(binding)}{wider}"
    remedies = dict.fromkeys(_remedy(name, slurm) for name in binding)
    commands = dict.fromkeys(more_cpus(name, installed, in_slurm="SLURM_JOB_ID" in slurm) for name in binding)
    return Finding("cpu_limits", True, evidence, "; ".join(remedies), commands=tuple(commands))


def more_cpus(limit: str, num: int, *, in_slurm: bool) -> str:
    """The command for `num` CPUs. limit: the limit to raise, as `machine.cpu_limits` names it.

    Sources: sbatch(1), --cpus-per-task; docker run, --cpus; taskset(1), which numbers CPUs from 0.
    """
    if limit == "cgroup quota":
        return f"docker run --cpus={num} ..."
    if _is_slurms(limit, in_slurm):
        return f"sbatch --cpus-per-task={num} ..."
    return f"taskset --cpu-list 0-{num - 1} python train.py ..."


def _is_slurms(limit: str, in_slurm: bool) -> bool:
    """Whether SLURM sets this limit; SLURM can also bind a job to its CPUs by affinity."""
    return limit == "SLURM_CPUS_PER_TASK" or (limit == "affinity" and in_slurm)


def _remedy(limit: str, slurm: Mapping[str, str]) -> str:
    """Sources: sbatch(1), without --cpus-per-task a task gets one CPU; docker run, --cpus, --cpuset-cpus."""
    if limit == "cgroup quota":
        return "give the container more CPUs (docker run --cpus, limits.cpu in Kubernetes, CPUQuota= of systemd)"
    if _is_slurms(limit, "SLURM_JOB_ID" in slurm):
        node = slurm.get("SLURM_CPUS_ON_NODE", "")
        room = f"; SLURM gave this job {node} CPUs of the node" if node.isdigit() else ""
        missing = "" if "SLURM_CPUS_PER_TASK" in slurm else "; without it, as in this job, a task gets one CPU"
        return f"request more CPUs from SLURM with --cpus-per-task{missing}{room}"
    return "start the run without taskset or numactl, or with more CPUs; start a container with a wider --cpuset-cpus"
