"""States as NVML gives them; no GPU is needed."""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.gpu import check_gpu
from imagenet_opt.measure.telemetry import gpu
from imagenet_opt.measure.telemetry.gpu import GpuState

HEALTHY = GpuState(index=3, name="NVIDIA A10G", clock_reasons=0, others=(), link=(4, 16), most_link=(4, 16))


def fired(**changes: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in check_gpu(replace(HEALTHY, **changes)) if finding.fired}


def test_what_cannot_be_read_is_not_judged() -> None:
    assert [finding.fired for finding in check_gpu(GpuState(index=0, name="a slice"))] == [None] * 3
    rules = [finding.rule for finding in check_gpu(None)]
    assert rules == [finding.rule for finding in check_gpu(HEALTHY)] and len(set(rules)) == 3


@pytest.mark.parametrize(
    ("bits", "reason"),
    [
        (0x24, "power limit"),
        (0x08, "hardware slowdown"),
        (0x20, "software slowdown for heat"),
        (0x48, "hardware slowdown for heat"),
        (0x80, "power brake"),
        (0x02, "administrator"),
    ],
)
def test_each_reason_of_lower_clocks_is_named(bits: int, reason: str) -> None:
    (clocks,) = fired(clock_reasons=bits).values()
    assert clocks.rule == "gpu_clocks" and reason in clocks.evidence and clocks.remedy and clocks.commands


def test_a_power_limit_alone_is_usual_for_a_busy_gpu() -> None:
    clocks = check_gpu(replace(HEALTHY, clock_reasons=4))[0]
    assert clocks.rule == "gpu_clocks" and clocks.fired is False and "power limit" in clocks.evidence
    assert "sudo nvidia-smi -i 3 -pl WATTS" in fired(clock_reasons=0x24)["gpu_clocks"].commands, "beside heat"


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({}, []),
        ({"clock_reasons": 1, "link": (1, 16)}, []),  # an idle GPU lowers the generation of its link
        ({"link": (4, 8)}, ["gpu_link"]),
        ({"link": (3, 16)}, ["gpu_link"]),
        ({"link": (1, 4), "clock_reasons": 1}, ["gpu_link"]),
        (
            {"link": (4, 8), "clock_reasons": 0x20, "others": ((41, "python", 9000),)},
            ["gpu_clocks", "gpu_others", "gpu_link"],
        ),
    ],
)
def test_slow_links_and_other_processes_fire_with_a_command(changes: dict[str, Any], rules: list[str]) -> None:
    findings = fired(**changes)
    assert list(findings) == rules and all(finding.commands for finding in findings.values())
    if "gpu_others" in findings:
        assert "python (pid 41, 9000 MiB)" in findings["gpu_others"].evidence
        assert findings["gpu_others"].commands[0].endswith("-p 41")


class Driver:
    """The used part of pynvml, for a driver that does not report why clocks are lowered."""

    class NVMLError(Exception):
        pass

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def refuse(self, device: object) -> int:
        raise self.NVMLError("Not Supported")

    nvmlDeviceGetCurrentClocksEventReasons = refuse

    def nvmlDeviceGetComputeRunningProcesses(self, device: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]

    def __getattr__(self, name: str) -> object:
        values = {"Index": 2, "Name": "a GPU", "CurrPcieLinkGeneration": 3, "CurrPcieLinkWidth": 8}
        values |= {"MaxPcieLinkGeneration": 4, "MaxPcieLinkWidth": 16}
        return lambda device: values[name.removeprefix("nvmlDeviceGet")]


def test_the_state_has_what_the_driver_reports() -> None:
    state = gpu._state(Driver(os.getpid(), os.getppid()), None)
    assert (state.index, state.name, state.link, state.most_link) == (2, "a GPU", (3, 8), (4, 16))
    assert state.clock_reasons is None
    assert state.others is not None and [pid for pid, *_ in state.others] == [os.getppid()]


def test_in_a_container_one_unknown_pid_may_be_our_own() -> None:
    unknown = 2**22 + 1, 2**22 + 2  # above any pid
    assert gpu._state(Driver(unknown[0]), None).others == ()
    assert gpu._state(Driver(*unknown), None).others == ((unknown[1], "in another container", 0),)
    assert gpu._state(Driver(os.getpid(), unknown[0]), None).others == ((unknown[0], "in another container", 0),)
