"""What is known about a run and its machine before any experiment."""

import contextlib
import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from imagenet_opt import machine
from imagenet_opt.config.speed import UNRATED
from imagenet_opt.data.budget import most_workers
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.data.index.files import SplitFiles, status_of
from imagenet_opt.display.progress import size
from imagenet_opt.errors import printable
from imagenet_opt.machine import Mount
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Samples
from imagenet_opt.probe.testbed import Testbed

_NUM_CHECKED = 200
"""Files that represent the data set in checks of places and sizes."""
_NUM_RESOLVED = 20
"""Files whose links are followed to find their mount."""


@dataclass(frozen=True)
class UrlCache:
    """Local cache of data below a URL. room: share of the training set, in bytes, that it can keep. evidence: how much
    it keeps, and what limits it."""

    room: float
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The run. A measurement without an explanation has the name of its key."""

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
    cached_share: float | None = None
    """Share of the data in the page cache (of a URL: in the local cache) before the first experiment; None: unknown."""
    cached_share_method: str = ""
    """How `cached_share` was measured, or why it is unknown."""
    cache: UrlCache | None = None
    """None if data.root is a folder."""
    rated_images_per_second: float | None = None
    """Rate of a healthy device of this kind with this network and these settings, if it was recorded."""
    rated_evidence: str = ""
    """Why there is no such rate."""
    profile: str = ""
    """Rate and source of the simulated device's profile."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine. Sizes in bytes. cpu_limits: see `machine.cpu_limits`. mount: of most training files; None for a URL.
    checked_files, released_files: numbers of files on Lustre, and of those whose content is only in the archive."""

    installed_cpus: int
    cpu_limits: Mapping[str, int]
    free_shared_memory: int
    available_memory: int
    in_slurm: bool = False
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
    ahead, profile = testbed.prefetch_factor, testbed.simulated
    estimate = " (estimate)" if profile is not None and profile.get("estimate", True) else ""
    return Setup(
        usable_cpus=most,
        num_workers=testbed.num_workers,
        prefetch_factor=ahead,
        asked_workers=most if loading.num_workers == "auto" else min(loading.num_workers, most),
        asked_prefetch=ahead if loading.prefetch_factor == "auto" else loading.prefetch_factor,
        lacks_memory=testbed.lacks_memory,
        batch_bytes=testbed.batch_bytes,
        num_processes=place.local_processes,
        num_samples=len(samples.index),
        log_every_n_steps=testbed.config.trainer.log_every_n_steps,
        has_gpu=on_gpu,
        packed=samples.is_packed,
        resize_on="worker" if loading.resize_on == "auto" and not on_gpu else loading.resize_on,
        reads_in_flight=str(loading.reads_in_flight),
        cached_share=cached.share,
        cached_share_method=cached.method,
        cache=_cache(samples) if isinstance(samples, RemoteSamples) else None,
        rated_images_per_second=testbed.rated,
        rated_evidence="" if testbed.rated else UNRATED,
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
        cpu_limits=machine.cpu_limits(),
        free_shared_memory=machine.free_shared_memory(),
        available_memory=machine.available_memory(),
        in_slurm="SLURM_JOB_ID" in os.environ,
        mount=mount,
        checked_files=checked_files,
        released_files=released_files,
    )


def _mount_of(files: list[str]) -> Mount | None:
    """The mount of most of the files; class folders may be links to another mount."""
    mounts = Counter(machine.find_mount(os.path.realpath(file)) for file in files[:_NUM_RESOLVED])
    return mounts.most_common(1)[0][0] if mounts else None


def _cache(samples: RemoteSamples) -> UrlCache:
    """The local cache: how much of the data it keeps, and what limits it."""
    if samples.cache is None:
        return UrlCache(0.0, "there is no local cache (data.cache_gb=0, or data.cache_dir cannot be written)")
    total = int(samples.cache.starts[-1])
    kept, place = round(samples.cache_room * total), printable(str(samples.cache.path))
    limit = "data.cache_gb" if samples.loading.cache_gb is not None else "the disk, of which 5 % stay free"
    text = f"the local cache {place} keeps {size(kept)} of the {size(total)}"
    text += f"; the limit is {samples.cache.stopped or limit}" * (kept < total)
    return UrlCache(samples.cache_room, text)


def mean_sizes(encoded: list[bytes]) -> tuple[float, float]:
    """Mean MB, and mean megapixels, of encoded images. Images that cannot be opened have no megapixels."""
    megapixels = []
    for image in encoded[:_NUM_CHECKED]:
        with contextlib.suppress(*REFUSED):
            width, height = open_image(image).size
            megapixels.append(width * height / 1e6)
    return float(np.mean([len(image) for image in encoded])) / 1e6, float(np.mean(megapixels or [0.0]))


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
