"""States as NVML gives them; no GPU is needed."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.gpu import check_gpu
from imagenet_opt.measure.telemetry import gpu
from imagenet_opt.measure.telemetry.gpu import GpuState

HEALTHY = GpuState(index=3, name="NVIDIA A10G", clock_reasons=0, others=(), link=(4, 16), most_link=(4, 16))


def fired(state: GpuState | None) -> dict[str, Finding]:
    return {found.rule: found for found in check_gpu(state) if found.fired}


def test_nothing_is_found_in_a_healthy_gpu_busy_or_idle() -> None:
    assert not fired(HEALTHY)
    assert not fired(replace(HEALTHY, clock_reasons=1, link=(1, 16)))
    assert all(found.fired is False for found in check_gpu(HEALTHY))


def test_what_cannot_be_read_is_not_judged() -> None:
    assert [found.fired for found in check_gpu(GpuState(index=0, name="a slice"))] == [None] * 3
    rules = [found.rule for found in check_gpu(None)]
    assert rules == [found.rule for found in check_gpu(HEALTHY)] and len(set(rules)) == 3


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x24, "power limit"),
        (0x08, "hardware slowdown"),
        (0x20, "software slowdown for heat"),
        (0x48, "hardware slowdown for heat"),
        (0x80, "power brake"),
        (0x02, "administrator"),
    ],
)
def test_each_reason_of_lower_clocks_is_named(bits: int, words: str) -> None:
    found = fired(replace(HEALTHY, clock_reasons=bits))
    assert list(found) == ["gpu_clocks"] and words in found["gpu_clocks"].evidence and found["gpu_clocks"].remedy


def test_a_power_limit_alone_is_what_a_busy_gpu_has() -> None:
    (clocks,) = (found for found in check_gpu(replace(HEALTHY, clock_reasons=4)) if found.rule == "gpu_clocks")
    assert clocks.fired is False and "power limit" in clocks.evidence


def test_beside_heat_the_power_limit_is_raised_on_the_gpu_of_that_index() -> None:
    assert "sudo nvidia-smi -i 3 -pl WATTS" in fired(replace(HEALTHY, clock_reasons=0x24))["gpu_clocks"].commands


def test_narrow_and_slow_links_are_found() -> None:
    assert list(fired(replace(HEALTHY, link=(4, 8)))) == ["gpu_link"]
    assert list(fired(replace(HEALTHY, link=(3, 16)))) == ["gpu_link"]
    assert list(fired(replace(HEALTHY, link=(1, 4), clock_reasons=1))) == ["gpu_link"]


def test_other_processes_are_named() -> None:
    found = fired(replace(HEALTHY, others=((41, "python", 9000),)))["gpu_others"]
    assert "python (pid 41, 9000 MiB)" in found.evidence
    assert found.commands[0].endswith("-p 41")


def test_whatever_fires_says_what_to_type() -> None:
    state = replace(HEALTHY, others=((41, "python", 9000),), link=(4, 8), clock_reasons=0x20)
    assert len(fired(state)) == 3 and all(found.commands for found in fired(state).values())


class Driver:
    """The part of pynvml that is used, of a driver that does not tell its clocks' reasons."""

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


def test_the_state_is_filled_as_far_as_the_driver_tells() -> None:
    state = gpu._state(Driver(os.getpid(), os.getppid()), None)
    assert (state.index, state.name, state.link, state.most_link) == (2, "a GPU", (3, 8), (4, 16))
    assert state.clock_reasons is None
    assert state.others is not None and [pid for pid, *_ in state.others] == [os.getppid()]


def test_in_a_container_one_unknown_number_may_be_our_own() -> None:
    unknown = 2**22 + 1, 2**22 + 2  # above any pid
    assert gpu._state(Driver(unknown[0]), None).others == ()
    assert gpu._state(Driver(*unknown), None).others == ((unknown[1], "in another container", 0),)
    assert gpu._state(Driver(os.getpid(), unknown[0]), None).others == ((unknown[0], "in another container", 0),)
