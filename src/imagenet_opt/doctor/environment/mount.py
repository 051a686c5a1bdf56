"""Checks the kind of storage that holds the data, and the options of its mount."""

import re
import shlex

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.errors import printable
from imagenet_opt.machine import Mount

_NETWORK, _OBJECTS, _PROGRAM, _LOCAL, _UNKNOWN = "network", "object storage", "program", "local", "unknown"
_KINDS = (
    ("mountpoint-s3|s3fs|goofys|geesefs|gcsfuse|blobfuse|juicefs|s3ql|rclone", _OBJECTS),
    ("lustre|nfs|cifs|smb3|ceph|beegfs|gpfs|wekafs|glusterfs|sshfs|9p|virtiofs|grpcfuse|drvfs|vboxsf", _NETWORK),
    ("^fuse", _PROGRAM),
    ("overlay|aufs", "layers of a container"),
    ("tmpfs|ramfs", "memory"),
    ("ext[234]|xfs|btrfs|zfs|f2fs|bcachefs", _LOCAL),
)
"""Pattern in a mount's type -> kind of storage; the first match counts. For FUSE the device is matched too, since
Mountpoint for Amazon S3 has type "fuse" and device "mountpoint-s3"."""
_MEANINGS = {
    _OBJECTS: "each file takes one or two requests to object storage, of tens of milliseconds each",
    _NETWORK: "each open and read asks a server, so many requests must be in flight at a time",
    _PROGRAM: "a program, not the kernel, answers each request (FUSE), perhaps over the network",
    "layers of a container": "the data is in the container's own file system, which is deleted with the container",
    "memory": "the data is in memory, and leaves less memory for everything else",
    _LOCAL: "a disk of this machine",
    _UNKNOWN: "a file system of an unknown kind",
}
_EBS = "Amazon Elastic Block Store"
"""Model name of an EBS volume, which appears as a local NVMe disk. gp3 gives 125 MB/s and 3000 requests a second unless
more is paid for (Amazon EBS User Guide, General Purpose SSD volumes)."""
_FULL_RSIZE = 1 << 20
"""Bytes of a read request (mount option rsize): the largest that Linux supports, and its default, nfs(5)."""


def check_mount(mount: Mount | None, data: DataPlace, *, model: str = "") -> Finding:
    """Fires if the data should be moved. model: model name that the disk reports."""
    if mount is None:
        return Finding("slow_mount", None, "no mount holds the data's folder")
    kind = _kind(mount)
    where = printable(f"the data is on {mount.mountpoint} ({mount.kind}, {mount.device})")
    evidence = f"{where}: {_MEANINGS[kind]}"
    if model == _EBS:
        evidence = f"{where}: an EBS volume, over the network; gp3 gives 125 MB/s unless more is paid for"
    elif model:
        evidence += f", {printable(model)}"
    if kind != _OBJECTS:
        return Finding("slow_mount", False, evidence)
    remedy = "pack the data onto a local disk, or copy it there; shards need few, large requests"
    if data.packed:
        remedy = "copy the shards onto a local disk"
    return Finding("slow_mount", True, evidence, remedy, commands=(data.pack(),))


def _kind(mount: Mount) -> str:
    text = f"{mount.kind} {mount.device}" if mount.kind.startswith("fuse") else mount.kind
    return next((kind for pattern, kind in _KINDS if re.search(pattern, text.lower())), _UNKNOWN)


def check_options(mount: Mount | None) -> Finding:
    """Check for mount options that make reading slower. Source: nfs(5), mount(8)."""
    if mount is None:
        return Finding("mount_options", None, "no mount holds the data's folder")
    faults = _nfs_faults(mount.options) if mount.kind.startswith("nfs") else _other_faults(mount)
    if not faults:
        options = ",".join(option for option in mount.options if "=" not in option)
        return Finding("mount_options", False, f"no mount option slows down reading: {options}")
    evidence = f"{mount.mountpoint} ({mount.kind}) is mounted with {', '.join(fault for fault, _ in faults)}"
    better, point = ",".join(option for _, option in faults), shlex.quote(printable(mount.mountpoint))
    remedy, command = "mount it with better options", f"sudo mount -o remount,{better} {point}"
    if "nconnect" in better:
        remedy += "; use nconnect only if the server supports it"
    if mount.kind.startswith("nfs"):  # remounting changes only a few options of an NFS mount, nfs(5)
        command = f"sudo umount {point} && sudo mount -t {mount.kind} -o {better} SERVER:/PATH {point}"
    return Finding("mount_options", True, printable(evidence), remedy, commands=(command,))


def _nfs_faults(options: tuple[str, ...]) -> list[tuple[str, str]]:
    """(fault, option that fixes it). atime does not matter: an NFS server keeps the times, nfs(5)."""
    values = dict(option.split("=", 1) for option in options if "=" in option)
    rsize = int(values.get("rsize", _FULL_RSIZE))
    faults = [(f"rsize={rsize}, requests of less than 1 MiB", f"rsize={_FULL_RSIZE}")] if rsize < _FULL_RSIZE else []
    if "nconnect" not in values and not values.get("proto", "tcp").startswith("rdma"):
        faults.append(("one connection to the server (no nconnect)", "nconnect=16"))
    if "sync" in options:
        faults.append(("sync, which writes each change at once", "async"))
    if "noac" in options or values.get("actimeo") == "0":
        faults.append(("noac, which asks the server for each file's attributes each time", "ac"))
    if values.get("lookupcache") == "none":
        faults.append(("lookupcache=none, which asks the server for each name each time", "lookupcache=all"))
    return faults


def _other_faults(mount: Mount) -> list[tuple[str, str]]:
    faults = []
    if "sync" in mount.options:
        faults.append(("sync, which writes each change at once", "async"))
    if _kind(mount) in (_NETWORK, _LOCAL) and not {"ro", "noatime", "relatime"} & set(mount.options):
        faults.append(("strict atime, a write for each file read", "noatime"))
    return faults
