"""Limits of a Lustre client on requests in flight, and files that Lustre has moved to an archive."""

from collections import Counter, defaultdict
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
    if kind != "lustre":
        return Finding("lustre_limits", None, f"the data is not on Lustre but on {kind}")
    if not limits:
        return Finding("lustre_limits", None, "the Lustre client's limits cannot be read; run this as root")
    least: dict[str, float] = defaultdict(lambda: float("inf"))
    for name, value in limits.items():
        subsystem, *_, parameter = name.split(".")
        least[f"{subsystem}.*.{parameter}"] = min(least[f"{subsystem}.*.{parameter}"], value)
    expected = _LEAST | (_BETTER if num_cpus > _MANY_CPUS else {})
    low = {name: value for name, value in expected.items() if least.get(name, value) < value}
    evidence = ", ".join(f"{name}={value:g}" for name, value in least.items())
    if not low:
        return Finding("lustre_limits", False, evidence)
    return Finding(
        "lustre_limits",
        True,
        f"{evidence}; less than {' and '.join(f'{name}={value}' for name, value in low.items())}"
        + (f", advised for more than {_MANY_CPUS} CPUs" if set(low) & set(_BETTER) and num_cpus > _MANY_CPUS else ""),
        remedy="ask an administrator to raise these limits on this machine; a reboot resets them",
        commands=tuple(f"sudo lctl set_param {name}={value}" for name, value in low.items()),
    )


def check_released(states: Mapping[str, int] | None, data: DataPlace, kind: str) -> Finding:
    """Fires if some files have been moved to the archive. kind: type of the file system; only Lustre reports such
    files."""
    if kind != "lustre":
        return Finding("released_files", None, f"only Lustre reports archived files; this file system is {kind}")
    if not states:
        return Finding("released_files", None, "the state of the checked files cannot be read")
    count = Counter("lost" if bits & LOST else "released" if bits & RELEASED else "present" for bits in states.values())
    evidence = (
        f"{count['released']} of {len(states)} checked files ({count['released'] / len(states):.0%}) are released"
    )
    if count["lost"]:
        evidence += f", {count['lost']} more are lost in the archive"
    if not count["released"]:
        return Finding("released_files", bool(count["lost"]), evidence)
    return Finding(
        "released_files",
        True,
        f"{evidence}: their content is in the archive, and Lustre fetches it when the file is first read",
        remedy="fetch all files before training, many in parallel",
        commands=(data.hydrate(),),
    )
