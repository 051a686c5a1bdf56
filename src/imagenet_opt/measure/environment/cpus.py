"""CPUs that the machine has and this job may not use."""

from collections.abc import Mapping

from imagenet_opt.measure.diagnosis import Finding


def check_cpus(limits: Mapping[str, int], *, installed: int, slurm: Mapping[str, str]) -> Finding:
    """limits: of `machine.cpu_limits`. slurm: environment variables of a SLURM job, if it is one."""
    usable = min(limits.values())
    binding = [name for name, cpus in limits.items() if cpus == usable]
    if usable >= installed:
        return Finding("cpu_limits", False, f"all {installed} CPUs may be used", environment=True)
    others = "".join(f", {name} allows {cpus}" for name, cpus in limits.items() if usable < cpus < installed)
    remedies = [_remedy(name, slurm) for name in binding]
    return Finding(
        "cpu_limits",
        True,
        f"this job may use {usable} of {installed} CPUs, because of {' and '.join(binding)}{others}",
        remedy="; ".join(dict.fromkeys(words for words, _ in remedies)),
        commands=tuple(dict.fromkeys(command for _, command in remedies)),
        environment=True,
    )


def _remedy(limit: str, slurm: Mapping[str, str]) -> tuple[str, str]:
    """In words, and what to type, with N to be filled in.

    Sources: sbatch(1), without --cpus-per-task a task gets one CPU; docker run, --cpus and --cpuset-cpus.
    """
    if limit == "cgroup quota":
        return (
            "give the container more CPUs (docker run --cpus, limits.cpu in Kubernetes, CPUQuota= of systemd)",
            "docker run --cpus=N ...",
        )
    if limit == "SLURM_CPUS_PER_TASK" or "SLURM_JOB_ID" in slurm:
        node = slurm.get("SLURM_CPUS_ON_NODE", "")
        room = f"; SLURM gave this job {node} CPUs of the node" if node.isdigit() else ""
        missing = "" if "SLURM_CPUS_PER_TASK" in slurm else ", which this job did not: then a task has one CPU"
        return f"ask SLURM for --cpus-per-task{missing}{room}", "sbatch --cpus-per-task=N ..."
    return (
        "start it without taskset or numactl, or with more CPUs; a container with a wider --cpuset-cpus",
        "taskset --cpu-list 0-N python train.py ...",
    )
