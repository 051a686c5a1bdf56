"""Checks limits of the Lustre client, and files that Lustre has moved to an archive."""

from collections.abc import Mapping

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.measure.storage.lustre import LOST, RELEASED

_MANY_CPUS = 64
_BETTER = {"osc.*.max_rpcs_in_flight": 32, "mdc.*.max_rpcs_in_flight": 64}
"""For clients of more than 64 CPUs. Source: Amazon FSx for Lustre User Guide, Performance tips, recommended client
instance tuning."""
_LEAST = {
    "osc.*.max_rpcs_in_flight": 8,
    "osc.*.max_pages_per_rpc": 256,
    "mdc.*.max_rpcs_in_flight": 8,
    "llite.*.max_read_ahead_mb": 64,
}
"""Lustre's older defaults: requests at a time to each OST and to each MDT, pages of 4 KiB per request, MiB read ahead.
Source: Lustre Operations Manual, Client I/O RPC Stream Tunables and Tuning File Readahead."""


def check_limits(limits: Mapping[str, float] | None, kind: str, *, num_cpus: int) -> Finding:
    """Check the lowest value of each limit. Fires below Lustre's own defaults, and on many CPUs below AWS's advice."""
    rule = "lustre_limits"
    if kind != "lustre":
        return Finding(rule, None, f"the data is not on Lustre but on {kind}")
    if not limits:
        return Finding(rule, None, "the Lustre client's limits cannot be read; run the doctor as root")
    lowest: dict[str, float] = {}
    for name, value in limits.items():
        subsystem, *_, parameter = name.split(".")
        key = f"{subsystem}.*.{parameter}"
        lowest[key] = min(lowest.get(key, value), value)
    evidence = ", ".join(f"{name}={value:g}" for name, value in lowest.items())
    expected = _LEAST | (_BETTER if num_cpus > _MANY_CPUS else {})
    low = {name: value for name, value in expected.items() if lowest.get(name, value) < value}
    if not low:
        return Finding(rule, False, evidence)
    evidence += f"; expected at least {' and '.join(f'{name}={value}' for name, value in low.items())}"
    if num_cpus > _MANY_CPUS and low.keys() & _BETTER.keys():
        evidence += f", as advised for more than {_MANY_CPUS} CPUs"
    remedy = "ask an administrator to raise these limits on this machine; a reboot resets them"
    commands = tuple(f"sudo lctl set_param {name}={value}" for name, value in low.items())
    return Finding(rule, True, evidence, remedy, commands=commands)


def check_released(states: Mapping[str, int] | None, data: DataPlace, kind: str) -> Finding:
    """Fires if some files have been moved to the archive. kind: type of the file system; only Lustre reports such
    files."""
    rule = "released_files"
    if kind != "lustre":
        return Finding(rule, None, f"only Lustre reports archived files; this file system is {kind}")
    if not states:
        return Finding(rule, None, "the state of the checked files cannot be read")
    lost = sum(bool(bits & LOST) for bits in states.values())
    released = sum(bits & (LOST | RELEASED) == RELEASED for bits in states.values())
    evidence = f"{released} of {len(states)} checked files ({released / len(states):.0%}) are released"
    if lost:
        evidence += f"; the archive has lost {lost} more"
    if not released:
        return Finding(rule, bool(lost), evidence, "copy the lost files again from their source" if lost else "")
    evidence += ": their content is in the archive, and Lustre fetches it when the file is first read"
    return Finding(
        rule, True, evidence, "fetch all files before training, many in parallel", commands=(data.hydrate(),)
    )
