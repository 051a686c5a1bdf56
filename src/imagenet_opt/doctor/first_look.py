"""What is known about a run and its machine without an experiment."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from imagenet_opt import machine
from imagenet_opt.data.budget import UNKNOWN, LoaderBudget, most_workers
from imagenet_opt.data.index.files import SplitFiles, status_of
from imagenet_opt.display.progress import size
from imagenet_opt.errors import printable
from imagenet_opt.machine import Mount
from imagenet_opt.measure.telemetry.thread_time import sees_run_queue
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Samples
from imagenet_opt.probe.testbed import Testbed

_NUM_CHECKED = 200  # files that represent the data set
_NUM_RESOLVED = 20  # files whose links are followed to find their mount


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The run of one process. A field without an explanation has the name of its key.

    usable_cpus: its share of the CPUs that the job may use after affinity, cgroup quota and SLURM. num_workers,
    prefetch_factor: workers, and batches ahead of each, after the loader has reduced them to the CPUs and the memory.
    budget: what the loader asked for, and the memory that decided. batch_bytes:
    mean size of a batch that a worker sends. sees_run_queue: whether the system reports how long a thread waits for a
    CPU. num_processes: training processes on this machine; one of them was
    measured. num_samples: images of the training set. packed: the data is stored in shards. resize_on: "worker" or
    "device". cached_share: share of the data in the page cache (of a URL: in the local cache) before the first
    experiment; None if unknown. cached_share_method: how it was measured, or why it is unknown. cache_room: share of
    the training set, in bytes, that the local cache of a URL can keep; None if data.root is a folder. cache_evidence:
    what limits it. rated_images_per_second: rate of a healthy device of this kind with this network and these settings,
    if it was recorded. profile: rate and source of the simulated device's profile.
    """

    usable_cpus: int
    num_workers: int
    prefetch_factor: int
    budget: LoaderBudget = UNKNOWN
    batch_bytes: float
    sees_run_queue: bool = True
    num_processes: int = 1
    num_samples: int
    has_gpu: bool = False
    packed: bool = False
    resize_on: str = "device"
    cached_share: float | None = None
    cached_share_method: str = ""
    cache_room: float | None = None
    cache_evidence: str = ""
    rated_images_per_second: float | None = None
    profile: str = ""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine. Sizes in bytes.

    installed_cores: CPUs without hyper-threads; 0 if unknown. cpu_limits: see `machine.cpu_limits`. mount: of most
    training files; None for a URL. checked_files, released_files: numbers of files on Lustre, and of those whose
    content is only in the archive.
    """

    installed_cpus: int
    installed_cores: int = 0
    cpu_limits: Mapping[str, int]
    free_shared_memory: int
    available_memory: int
    mount: Mount | None = None
    checked_files: int = 0
    released_files: int = 0

    @property
    def usable_cpus(self) -> int:
        """CPUs that the job may use."""
        return min(self.cpu_limits.values())

    @property
    def mount_kind(self) -> str:
        return self.mount.kind if self.mount else "no mount"

    @property
    def keeps_data_in_memory(self) -> bool:
        return self.mount_kind in ("tmpfs", "ramfs")


def setup_of(testbed: Testbed) -> Setup:
    """The run. Call it before anything reads a sample."""
    loading, place, samples = testbed.loading, testbed.rank_info, testbed.samples
    cached = samples.residency()
    samples.read_few()
    on_gpu = testbed.device.type == "cuda"
    most = most_workers(processes=place.local_processes, sharing_cpus=place.sharing_cpus)
    profile = testbed.simulated
    estimate = " (estimate)" if profile is not None and profile.get("estimate", True) else ""
    return Setup(
        usable_cpus=most,
        num_workers=testbed.num_workers,
        prefetch_factor=testbed.prefetch_factor,
        budget=testbed.budget,
        batch_bytes=testbed.batch_bytes,
        sees_run_queue=sees_run_queue(),
        num_processes=place.local_processes,
        num_samples=len(samples.index),
        has_gpu=on_gpu,
        packed=samples.is_packed,
        resize_on="worker" if loading.resize_on == "auto" and not on_gpu else loading.resize_on,
        cached_share=cached.share,
        cached_share_method=cached.method,
        cache_room=samples.cache_room if isinstance(samples, RemoteSamples) else None,
        cache_evidence=_cache_evidence(samples) if isinstance(samples, RemoteSamples) else "",
        rated_images_per_second=testbed.rated,
        profile=""
        if profile is None
        else f"{profile.images_per_second:g} images/s{estimate}; source: {profile.get('source', 'unknown')}",
    )


def host_of(samples: Samples) -> Host:
    """The machine, and the storage of the samples. Never an error if the machine lacks a feature."""
    mount, checked_files, released_files = None, 0, 0
    if not isinstance(samples, RemoteSamples):
        files = list(dict.fromkeys(extent.path for extent in samples.extents(samples.rows[:_NUM_CHECKED])))
        mount = _mount_of(files)
        if mount is not None and mount.kind == "lustre":
            status = status_of(SplitFiles(Path(), len(files), files.__getitem__))
            checked_files, released_files = int((status.sizes >= 0).sum()), int(status.released.sum())
    return Host(
        installed_cpus=os.cpu_count() or 1,
        installed_cores=psutil.cpu_count(logical=False) or 0,
        cpu_limits=machine.cpu_limits(),
        free_shared_memory=machine.free_shared_memory(),
        available_memory=machine.available_memory(),
        mount=mount,
        checked_files=checked_files,
        released_files=released_files,
    )


def _mount_of(files: list[str]) -> Mount | None:
    """The mount of most of the files; class folders may be links to another mount."""
    mounts = Counter(machine.find_mount(os.path.realpath(file)) for file in files[:_NUM_RESOLVED])
    return mounts.most_common(1)[0][0] if mounts else None


def _cache_evidence(samples: RemoteSamples) -> str:
    """How much of the data the local cache keeps, and what limits it."""
    if samples.cache is None:
        return "there is no local cache (data.cache_gb=0, or data.cache_dir cannot be written)"
    total = int(samples.cache.starts[-1])
    kept, place = round(samples.cache_room * total), printable(str(samples.cache.path))
    limit = "data.cache_gb" if samples.loading.cache_gb is not None else "the disk, of which 5 % stay free"
    text = f"the local cache {place} keeps {size(kept)} of the {size(total)}"
    return f"{text}; the limit is {samples.cache.stopped or limit}" if kept < total else text


def hardware_of(testbed: Testbed) -> dict[str, str]:
    """Facts of the machine, for people and for comparisons of runs."""
    on_gpu = testbed.device.type == "cuda"
    return {
        "cpu": machine.cpu_name(),
        "gpu": torch.cuda.get_device_name() if on_gpu else "none",
        "system": platform.platform(),
        "usable CPUs": str(machine.usable_cpus()),
        **machine.hardware(testbed.samples.index.place, on_gpu=on_gpu),
    }
