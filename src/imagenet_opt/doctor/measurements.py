"""What the doctor measured: frozen records, which doctor.json holds."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from imagenet_opt.machine import Mount
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.limit import StorageLimit
from imagenet_opt.measure.telemetry.gpu import GpuState
from imagenet_opt.probe.model_flops import SizePhase

STAGES = {
    "gpu": "GPU, batch resident",
    "gpu_beside_loader": "GPU, while the loader runs",
    "loader_warm": "loader, files in memory",
    "loader_cold": "loader, files on storage",
    "decode_one": "decode from memory, 1 worker",
    "decode_all": "decode from memory, all workers",
    "storage_cached": "read, files in memory",
    "storage_cold": "read, files on storage",
    "copy": "copy to the GPU",
    "copy_overlapped": "copy to the GPU while it computes",
    "full_warm": "full run, files in memory",
    "full_cold": "full run, files on storage",
}
"""Key of each experiment -> its displayed name, with files and a GPU."""
_STAGES_OF_URLS = {
    "loader_warm": "loader, samples in the local cache",
    "storage_cached": "read, samples in the local cache",
    "full_warm": "full run, samples in the local cache",
}

_KINDS = (
    ("mountpoint-s3|s3fs|goofys|geesefs|gcsfuse|blobfuse|juicefs|s3ql|rclone", "object storage"),
    ("lustre|nfs|cifs|smb3|ceph|beegfs|gpfs|wekafs|glusterfs|sshfs|9p|virtiofs|grpcfuse|drvfs|vboxsf", "network"),
    ("^fuse", "program"),
    ("overlay|aufs", "container"),
    ("tmpfs|ramfs", "memory"),
    ("ext[234]|xfs|btrfs|zfs|f2fs|bcachefs", "local"),
)
"""Pattern in a mount's type -> kind of storage; the first match counts."""


def stage_names(*, is_remote: bool, has_device: bool) -> dict[str, str]:
    """Key of each experiment -> its displayed name. is_remote: data below a URL. has_device: a GPU, or a simulated
    one."""
    names = STAGES | _STAGES_OF_URLS if is_remote else STAGES
    return names if has_device else {key: name.replace("GPU", "CPU") for key, name in names.items()}


@dataclass(frozen=True)
class UrlCache:
    """Local cache of data below a URL. room: share of the training set, in bytes, that it can keep. evidence: how much
    it keeps, and what limits it."""

    room: float
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The run, known before any experiment. A measurement without an explanation has the name of its key."""

    usable_cpus: int
    """CPUs of one process: its share of those that the job may use after affinity, cgroup quota and SLURM."""
    num_workers: int
    prefetch_factor: int
    """Workers, and batches ahead of each, after the loader has reduced them to the CPUs and the memory."""
    asked_workers: int
    asked_prefetch: int
    """The same as configured, with auto resolved and at most one worker per usable CPU."""
    lacks_memory: bool = False
    """The loader has fewer workers or batches ahead than that, for lack of memory."""
    batch_bytes: float
    """Mean size of a batch that a worker sends."""
    num_processes: int = 1
    """Training processes on this machine; one of them was measured."""
    num_samples: int
    """Images of the training set."""
    log_every_n_steps: int = 20
    has_gpu: bool = False
    packed: bool = False
    """The data is stored in shards."""
    resize_on: str = "device"
    """Where images are resized: "worker" or "device"."""
    reads_in_flight: str = "auto"
    precision: str = "32-true"
    capability: tuple[int, int] | None = None
    """Of a CUDA GPU."""
    cached_share: float | None = None
    """Share of the data in the page cache (of a URL: in the local cache) before the first experiment; None: unknown."""
    cached_share_method: str = ""
    """How `cached_share` was measured, or why it is unknown."""
    cache: UrlCache | None = None
    """None if data.root is a folder."""
    rated_images_per_second: float | None = None
    """Rate of a healthy device of this kind with this network and these settings, if it was recorded."""
    rated_evidence: str = ""
    """Where this rate comes from, or why there is none."""
    profile: str = ""
    """Rate and source of the simulated device's profile."""
    profile_estimate: bool = False


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine before any experiment. Sizes in bytes. slurm: the environment variables SLURM_*. mount, disk_model:
    of the training files; None and "" for a URL, and if no mount holds them. checked_files, released_files, lost_files:
    numbers of files that Lustre reports; 0 elsewhere. lustre_limits: value by name; empty if they cannot be read."""

    installed_cpus: int
    cpu_limits: Mapping[str, int]
    free_shared_memory: int
    available_memory: int
    slurm: Mapping[str, str] = field(default_factory=dict)
    mount: Mount | None = None
    disk_model: str = ""
    checked_files: int = 0
    released_files: int = 0
    lost_files: int = 0
    lustre_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable_cpus(self) -> int:
        """CPUs that the job may use."""
        return min(self.cpu_limits.values())

    @property
    def cpu_limit(self) -> str:
        """What limits them, as `machine.cpu_limits` names it."""
        return min(self.cpu_limits, key=lambda name: self.cpu_limits[name])

    @property
    def in_slurm(self) -> bool:
        return "SLURM_JOB_ID" in self.slurm

    @property
    def is_lustre(self) -> bool:
        return self.mount is not None and self.mount.kind == "lustre"

    @property
    def mount_kind(self) -> str:
        """Kind of storage; "" if unknown. For FUSE the device counts too: Mountpoint for Amazon S3 has type "fuse" and
        device "mountpoint-s3"."""
        if self.mount is None:
            return ""
        text = self.mount.kind + f" {self.mount.device}" * self.mount.kind.startswith("fuse")
        return next((kind for pattern, kind in _KINDS if re.search(pattern, text.lower())), "")


@dataclass(frozen=True)
class Touches:
    """Median seconds of the first and the second read of files. lazy: whether the mount fetches files from a remote
    store at their first read; None if that is unknown. in_flight: requests of all workers when an epoch begins."""

    first_seconds: float
    second_seconds: float
    lazy: bool | None
    in_flight: int
    evidence: str


@dataclass(frozen=True)
class PackForecast:
    """What packing gives. option: of `imagenet-opt pack`, such as "for=224". speedup: images/s that a worker decodes
    from packed images / from the originals. bytes_ratio: bytes packed / bytes of the originals."""

    option: str
    speedup: float
    bytes_ratio: float


@dataclass(frozen=True)
class Occupancy:
    """Use of the machine during the experiments. others_cpus: CPUs that processes outside this run use. others: the
    busiest of them, as "java (pid 8)". swapped_mb: MB that the machine wrote to swap and read back."""

    seconds: float = 0.0
    others_cpus: float = 0.0
    others: tuple[str, ...] = ()
    swapped_mb: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measurements. Rates in images per second of one process, times in seconds.

    simulated: name of the simulated device's profile; None on real hardware. ceilings: keys of STAGES. limits: what
    limits the reads of a stage, "storage_cold" or "storage_cached". curves: points (x, y) by name: "workers" (workers,
    images/s decoded from memory), "reads_in_flight" (requests in flight, images/s read cold), "reads_in_flight_cached"
    (the same from memory), "cached_share" (share of the data in the page cache, images/s read). mb_per_image,
    megapixels: means of some images. images_per_request: of a request to the storage. touches, pack, gpu: None if the
    experiment failed or does not apply. conv_tf32: whether float32 convolutions used TF32 in training. left_out: why
    the stages with files in memory are left out; "" if they are not. unverified: why files that were to be read from
    storage may have been in memory. no_kernels: why the profiler recorded no kernel of the GPU. failed: experiment ->
    reason. phases: seconds of a step of the full run that the main process spent in "fetch", "logging", "checkpoint",
    "step", "callback NAME", ... step_seconds: each step of the full run. waits_per_step, waits: how often the host
    waits for the GPU in an ordinary step of the full run, and the most frequent places, as "item at mine.py:7".
    growing: the phases of a run whose images grow; the largest size is measured. config: the configuration without
    secrets.
    """

    simulated: str | None
    batch_size: int
    setup: Setup
    host: Host
    mb_per_image: float
    megapixels: float
    images_per_request: float = 1.0
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)
    limits: Mapping[str, StorageLimit] = field(default_factory=dict)
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    occupancy: Occupancy = Occupancy()
    touches: Touches | None = None
    pack: PackForecast | None = None
    gpu: GpuState | None = None
    conv_tf32: bool = False
    left_out: str = ""
    unverified: str = ""
    no_kernels: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    step_seconds: tuple[float, ...] = ()
    waits_per_step: float = 0.0
    waits: tuple[str, ...] = ()
    growing: tuple[SizePhase, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    date: str = ""

    @property
    def stages(self) -> dict[str, str]:
        """Key of each experiment -> its displayed name."""
        has_device = self.setup.has_gpu or self.simulated is not None
        return stage_names(is_remote=self.setup.cache is not None, has_device=has_device)

    @property
    def not_measured(self) -> str:
        """The experiments that failed, by reason."""
        reasons = dict.fromkeys(self.failed.values())
        by_reason = {why: "; ".join(name for name, other in self.failed.items() if other == why) for why in reasons}
        return ". ".join(f"{reason} ({names})" for reason, names in by_reason.items())

    def known(self) -> dict[str, float | str]:
        """Further measurements by name, for tables."""
        parts = (self.setup, self.touches, self.pack, self.occupancy)
        plain = [asdict(part) for part in parts if part is not None]
        own = {name: getattr(self, name) for name in ("mb_per_image", "megapixels", "left_out", "unverified")}
        known = {name: value for part in (*plain, own) for name, value in part.items()}
        return {name: value for name, value in known.items() if isinstance(value, int | float | str) and value != ""}
