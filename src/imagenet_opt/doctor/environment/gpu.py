"""Checks external limits of a GPU: heat, power, other processes, the PCIe link."""

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.errors import printable
from imagenet_opt.measure.telemetry.gpu import GpuState

_IDLE = 0x1
_COOLING = "check its cooling: air flow, fans, neighbouring boards"
_REASONS = {
    0x08: ("hardware slowdown (heat, power brake or a fast power draw)", "check its cooling and its power supply"),
    0x20: ("software slowdown for heat", _COOLING),
    0x40: ("hardware slowdown for heat", _COOLING),
    0x80: ("power brake of the machine", "check the machine's power supply"),
    0x04: ("power limit", "raise the power limit, if the board allows more"),
    0x02: ("clocks set by an administrator", "reset the application clocks"),
}
"""Bit -> reason for lowered clocks, and the remedy. Source: nvmlClocksEventReasons in NVIDIA's NVML API reference."""
_POWER = 0x04
"""The power limit is ordinary for a busy GPU; it matters only if the GPU is slower than others of its kind."""
_COMMANDS = {0x04: "sudo nvidia-smi -i {index} -pl WATTS", 0x02: "sudo nvidia-smi -i {index} -rac"}
_LOOK = "nvidia-smi -i {index} -q -d TEMPERATURE,POWER,PERFORMANCE"
LINK = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"


def check_gpu(state: GpuState | None) -> list[Finding]:
    """Check all rules of the GPU. state: None without a GPU or without NVML."""
    rules = (gpu_clocks, gpu_others, gpu_link)
    if state is None:
        return [Finding(rule.__name__, None, "there is no CUDA GPU here, or NVML is missing") for rule in rules]
    return [rule(state) for rule in rules]


def gpu_clocks(state: GpuState) -> Finding:
    if state.clock_reasons is None:
        return Finding("gpu_clocks", None, f"{state.name} does not report why its clocks are lowered")
    bits = [bit for bit in _REASONS if bit & state.clock_reasons]
    if not bits:
        idle = " while the GPU is idle" if state.clock_reasons & _IDLE else ""
        return Finding("gpu_clocks", False, f"nothing lowers the clocks of {state.name}{idle}")
    if bits == [_POWER]:
        ordinary = f"the power limit holds the clocks of {state.name}, as is usual under load"
        return Finding("gpu_clocks", False, ordinary)
    evidence = f"the clocks of {state.name} are lowered by: {', '.join(_REASONS[bit][0] for bit in bits)}"
    remedies = dict.fromkeys(_REASONS[bit][1] for bit in bits)
    commands = dict.fromkeys(_COMMANDS.get(bit, _LOOK).format(index=state.index) for bit in bits)
    return Finding("gpu_clocks", True, evidence, "; ".join(remedies), commands=tuple(commands))


def gpu_others(state: GpuState) -> Finding:
    if state.others is None:
        return Finding("gpu_others", None, f"{state.name} does not list its processes")
    if not state.others:
        return Finding("gpu_others", False, f"no other process computes on {state.name}")
    names = ", ".join(f"{printable(name)} (pid {pid}, {mib} MiB)" for pid, name, mib in state.others)
    pids = ",".join(str(pid) for pid, *_ in state.others)
    return Finding(
        "gpu_others",
        True,
        f"other processes compute on {state.name}: {names}",
        "end these processes, or select another GPU with CUDA_VISIBLE_DEVICES",
        commands=(f"ps -o pid,user,etime,args -p {pids}", "nvidia-smi --query-gpu=index,utilization.gpu --format=csv"),
    )


def gpu_link(state: GpuState) -> Finding:
    if state.link is None or state.most_link is None:
        return Finding("gpu_link", None, f"{state.name} does not report its PCIe link")
    (generation, lanes), (most_generation, most_lanes) = state.link, state.most_link
    evidence = f"the link is PCIe {generation} x{lanes}, of at most PCIe {most_generation} x{most_lanes}"
    is_idle = bool((state.clock_reasons or 0) & _IDLE)
    if lanes == most_lanes and (generation == most_generation or is_idle):
        saving = " (a lower generation saves power while the GPU is idle)" if generation < most_generation else ""
        return Finding("gpu_link", False, evidence + saving)
    remedy = "try another slot or riser, or check the BIOS settings of the slot; a virtual machine may report less"
    command = f"nvidia-smi -i {state.index} --query-gpu={LINK} --format=csv"
    return Finding("gpu_link", True, evidence, remedy, commands=(command,))
