"""Checks of the storage: its mount, its options, files that Lustre has archived, the limits of Lustre's client."""

import shlex

from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.rule import Rule, Texts, data_place
from imagenet_opt.errors import printable
from imagenet_opt.machine import Mount

_MEANINGS = {
    "object storage": "each file takes one or two requests to object storage, of tens of milliseconds each",
    "network": "each open and read asks a server, so many requests must be in flight at a time",
    "program": "a program, not the kernel, answers each request (FUSE), perhaps over the network",
    "container": "the data is in the container's own file system, which is deleted with the container",
    "memory": "the data is in memory, and leaves less memory for everything else",
    "local": "a disk of this machine",
    "": "a file system of an unknown kind",
}
_EBS = "Amazon Elastic Block Store"
"""Model name of an EBS volume, which appears as a local NVMe disk. gp3 gives 125 MB/s and 3000 requests a second unless
more is paid for (Amazon EBS User Guide, General Purpose SSD volumes)."""
_FULL_RSIZE = 1 << 20
"""Bytes of a read request (mount option rsize): the largest that Linux supports, and its default, nfs(5)."""
_MANY_CPUS = 64
_FOR_MANY_CPUS = {"osc.*.max_rpcs_in_flight": 32, "mdc.*.max_rpcs_in_flight": 64}
"""Source: Amazon FSx for Lustre User Guide, Performance tips, recommended client instance tuning."""
_LUSTRE_DEFAULTS = {
    "osc.*.max_rpcs_in_flight": 8,
    "osc.*.max_pages_per_rpc": 256,
    "mdc.*.max_rpcs_in_flight": 8,
    "llite.*.max_read_ahead_mb": 64,
}
"""Requests at a time to each OST and to each MDT, pages of 4 KiB per request, MiB read ahead. Source: Lustre Operations
Manual, Client I/O RPC Stream Tunables and Tuning File Readahead."""


def _mount(e: Evidence) -> Mount:
    assert e.host.mount is not None, "see _unmounted"
    return e.host.mount


def _unmounted(e: Evidence) -> str:
    return "" if e.host.mount else "no mount holds the data's folder"


def _elsewhere(e: Evidence) -> str:
    """Why a check of Lustre does not apply."""
    return (
        ""
        if e.host.is_lustre
        else f"the data is not on Lustre but on {e.host.mount.kind if e.host.mount else 'no mount'}"
    )


def _mount_says(e: Evidence) -> str:
    mount, model = _mount(e), e.host.disk_model
    where = printable(f"the data is on {mount.mountpoint} ({mount.kind}, {mount.device})")
    if model == _EBS:
        return f"{where}: an EBS volume, over the network; gp3 gives 125 MB/s unless more is paid for"
    return f"{where}: {_MEANINGS[e.host.mount_kind]}{f', {printable(model)}' if model else ''}"


def _mount_remedy(e: Evidence) -> str:
    if e.setup.packed:
        return "copy the shards onto a local disk"
    return "pack the data onto a local disk, or copy it there; shards need few, large requests"


def _option_faults(e: Evidence) -> list[tuple[str, str]]:
    """(fault, option that fixes it). Source: nfs(5), mount(8). An NFS server keeps the times, so atime does not matter
    there."""
    options = _mount(e).options
    values = dict(option.split("=", 1) for option in options if "=" in option)
    faults = [("sync, which writes each change at once", "async")] if "sync" in options else []
    if not _mount(e).kind.startswith("nfs"):
        strict = e.host.mount_kind in ("network", "local") and not {"ro", "noatime", "relatime"} & set(options)
        return [*faults, *([("strict atime, a write for each file read", "noatime")] if strict else [])]
    if (rsize := int(values.get("rsize", _FULL_RSIZE))) < _FULL_RSIZE:
        faults.append((f"rsize={rsize}, requests of less than 1 MiB", f"rsize={_FULL_RSIZE}"))
    if "nconnect" not in values and not values.get("proto", "tcp").startswith("rdma"):
        faults.append(("one connection to the server (no nconnect)", "nconnect=16"))
    if "noac" in options or values.get("actimeo") == "0":
        faults.append(("noac, which asks the server for each file's attributes each time", "ac"))
    if values.get("lookupcache") == "none":
        faults.append(("lookupcache=none, which asks the server for each name each time", "lookupcache=all"))
    return faults


def _options_say(e: Evidence) -> str:
    mount, faults = _mount(e), _option_faults(e)
    if not faults:
        return f"no mount option slows down reading: {','.join(name for name in mount.options if '=' not in name)}"
    return printable(f"{mount.mountpoint} ({mount.kind}) is mounted with {', '.join(fault for fault, _ in faults)}")


def _remount(e: Evidence) -> Texts:
    """Remounting changes only a few options of an NFS mount, nfs(5)."""
    mount, better = _mount(e), ",".join(option for _, option in _option_faults(e))
    point = shlex.quote(printable(mount.mountpoint))
    if mount.kind.startswith("nfs"):
        return (f"sudo umount {point} && sudo mount -t {mount.kind} -o {better} SERVER:/PATH {point}",)
    return (f"sudo mount -o remount,{better} {point}",)


def _released_says(e: Evidence) -> str:
    checked, released, lost = e.host.checked_files, e.host.released_files, e.host.lost_files
    text = f"{released} of {checked} checked files ({released / checked:.0%}) are released"
    text += f"; the archive has lost {lost} more" * bool(lost)
    fetched = ": their content is in the archive, and Lustre fetches it when the file is first read"
    return text + fetched * bool(released)


def _lowest_limits(e: Evidence) -> dict[str, float]:
    """The lowest value of each limit of the Lustre client."""
    lowest: dict[str, float] = {}
    for name, value in e.host.lustre_limits.items():
        subsystem, *_, parameter = name.split(".")
        key = f"{subsystem}.*.{parameter}"
        lowest[key] = min(lowest.get(key, value), value)
    return lowest


def _low_limits(e: Evidence) -> dict[str, int]:
    """Limit -> its least good value, for those that are lower."""
    expected = _LUSTRE_DEFAULTS | (_FOR_MANY_CPUS if e.host.installed_cpus > _MANY_CPUS else {})
    lowest = _lowest_limits(e)
    return {name: value for name, value in expected.items() if lowest.get(name, value) < value}


def _limits_say(e: Evidence) -> str:
    values = ", ".join(f"{name}={value:g}" for name, value in _lowest_limits(e).items())
    low = " and ".join(f"{name}={value}" for name, value in _low_limits(e).items())
    advised = f", as advised for more than {_MANY_CPUS} CPUs" * (e.host.installed_cpus > _MANY_CPUS)
    return f"{values}; expected at least {low}{advised}" if low else values


def faster_reads(e: Evidence) -> float:
    """Gain from data on a local disk, which the loader then reads as fast as from memory."""
    return e.reading_gain if e.is_slow_reading else 1.0


def _unknown_reads(e: Evidence) -> float | None:
    """Gain from a faster storage: 1 if reading is not the limit, else unknown."""
    return None if e.is_slow_reading else 1.0


STORAGE_CHECKS = (
    Rule(
        name="slow_mount",
        unknown=_unmounted,
        when=lambda e: e.host.mount_kind == "object storage",
        says=_mount_says,
        remedy=_mount_remedy,
        commands=lambda e: (data_place(e).pack(),),
        gain=faster_reads,
    ),
    Rule(
        name="mount_options",
        unknown=_unmounted,
        when=lambda e: bool(_option_faults(e)),
        says=_options_say,
        remedy="mount it with better options; use nconnect only if the server supports it",
        commands=_remount,
        gain=_unknown_reads,
    ),
    Rule(
        name="released_files",
        unknown=lambda e: _elsewhere(e) or "the state of the files cannot be read" * (not e.host.checked_files),
        when=lambda e: bool(e.host.released_files or e.host.lost_files),
        says=_released_says,
        remedy=lambda e: (
            "fetch all files before training, many in parallel"
            if e.host.released_files
            else "copy the lost files again from their source"
        ),
        commands=lambda e: (data_place(e).hydrate(),) if e.host.released_files else (),
        gain=faster_reads,
    ),
    Rule(
        name="lustre_limits",
        unknown=lambda e: _elsewhere(e) or "run the doctor as root to read the limits" * (not e.host.lustre_limits),
        when=lambda e: bool(_low_limits(e)),
        says=_limits_say,
        remedy="ask an administrator to raise these limits on this machine; a reboot resets them",
        commands=lambda e: tuple(f"sudo lctl set_param {name}={value}" for name, value in _low_limits(e).items()),
        gain=_unknown_reads,
    ),
)
