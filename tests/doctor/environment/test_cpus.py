import pytest

from imagenet_opt.doctor.environment.cpus import check_cpus

CASES = [
    ({"affinity": 2}, {}, "taskset --cpu-list 0-63 "),
    ({"affinity": 64, "cgroup quota": 2}, {}, "docker run --cpus=64"),
    ({"affinity": 2}, {"SLURM_JOB_ID": "7"}, "sbatch --cpus-per-task=64"),
    ({"affinity": 64, "SLURM_CPUS_PER_TASK": 2}, {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2"}, "sbatch"),
]


@pytest.mark.parametrize(("limits", "slurm", "command"), CASES)
def test_the_lowest_limit_is_named_with_its_remedy(limits: dict[str, int], slurm: dict[str, str], command: str) -> None:
    finding = check_cpus(limits, installed=64, slurm=slurm)
    assert finding.fired and "2 of 64 CPUs" in finding.evidence
    assert min(limits, key=limits.__getitem__) in finding.evidence
    assert len(finding.commands) == 1 and command in finding.commands[0]


def test_two_equal_limits_are_both_named_and_a_wider_limit_with_its_number() -> None:
    limits = {"affinity": 4, "cgroup quota": 4, "SLURM_CPUS_PER_TASK": 16}
    finding = check_cpus(limits, installed=64, slurm={})
    assert "affinity and cgroup quota" in finding.evidence and "SLURM_CPUS_PER_TASK allows 16" in finding.evidence
    assert len(finding.commands) == 2


def test_a_slurm_job_without_cpus_per_task_gets_the_reason() -> None:
    finding = check_cpus({"affinity": 1}, installed=64, slurm={"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "32"})
    assert "without it, as in this job" in finding.remedy and "32 CPUs of the node" in finding.remedy


def test_all_cpus_are_no_finding() -> None:
    assert check_cpus({"affinity": 8, "cgroup quota": 12}, installed=8, slurm={}).fired is False
