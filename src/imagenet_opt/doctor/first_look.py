"""What is known about a run and its machine before any experiment."""

import contextlib
import os
from collections import Counter

import numpy as np
import torch

from imagenet_opt import machine
from imagenet_opt.config.build import precision_of
from imagenet_opt.config.recorded_rate import UNRATED
from imagenet_opt.data.budget import most_workers
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.display.progress import size
from imagenet_opt.doctor.measurements import Host, Setup, UrlCache
from imagenet_opt.errors import printable
from imagenet_opt.machine import Mount
from imagenet_opt.measure.storage.lustre import LOST, RELEASED, read_hsm_states, read_limits
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.samples import Samples
from imagenet_opt.probe.testbed import Testbed

_NUM_CHECKED = 200
"""Files that represent the data set in checks of places and sizes."""
_NUM_RESOLVED = 20
"""Files whose links are followed to find their mount."""


def setup_of(testbed: Testbed) -> Setup:
    """The run. Call it before anything reads a sample."""
    loading, config, place, samples = testbed.loading, testbed.config, testbed.rank_info, testbed.samples
    cached = samples.residency()
    samples.read_few()
    on_gpu = testbed.device.type == "cuda"
    most = most_workers(processes=place.local_processes, sharing_cpus=place.sharing_cpus)
    workers, ahead = testbed.num_workers, testbed.prefetch_factor
    rated = testbed.rated
    profile, estimate = testbed.simulated, False
    if profile is not None:
        estimate = bool(profile.get("estimate", True))
        rate = f"{profile.images_per_second:g} images/s{' (estimate)' if estimate else ''}"
        profile = f"{rate}; source: {profile.get('source', 'unknown')}"
    return Setup(
        usable_cpus=most,
        num_workers=workers,
        prefetch_factor=ahead,
        asked_workers=most if loading.num_workers == "auto" else min(loading.num_workers, most),
        asked_prefetch=ahead if loading.prefetch_factor == "auto" else loading.prefetch_factor,
        lacks_memory=testbed.lacks_memory,
        batch_bytes=testbed.batch_bytes,
        num_processes=place.local_processes,
        num_samples=len(samples.index),
        log_every_n_steps=config.trainer.log_every_n_steps,
        has_gpu=on_gpu,
        capability=torch.cuda.get_device_capability(testbed.device) if on_gpu else None,
        packed=samples.is_packed,
        resize_on="worker" if loading.resize_on == "auto" and not on_gpu else loading.resize_on,
        reads_in_flight=str(loading.reads_in_flight),
        precision=precision_of(config.trainer.precision, testbed.device),
        cached_share=cached.share,
        cached_share_method=cached.method,
        cache=_cache(samples) if isinstance(samples, RemoteSamples) else None,
        rated_images_per_second=rated,
        rated_evidence="" if rated else UNRATED,
        profile=profile or "",
        profile_estimate=estimate,
    )


def host_of(samples: Samples) -> Host:
    """The machine, and the storage of the samples. Never an error if the machine lacks a feature."""
    mount, states, limits = None, {}, {}
    if not isinstance(samples, RemoteSamples):
        files = [extent.path for extent in samples.extents(samples.rows[:_NUM_CHECKED])]
        mount = _mount_of(files)
        if mount is not None and mount.kind == "lustre":
            states, limits = read_hsm_states(files) or {}, read_limits() or {}
    return Host(
        installed_cpus=os.cpu_count() or 1,
        cpu_limits=machine.cpu_limits(),
        free_shared_memory=machine.free_shared_memory(),
        available_memory=machine.available_memory(),
        slurm={name: value for name, value in os.environ.items() if name.startswith("SLURM_")},
        mount=mount,
        disk_model=machine.disk_model(mount.device) if mount else "",
        checked_files=len(states),
        released_files=sum(bits & (LOST | RELEASED) == RELEASED for bits in states.values()),
        lost_files=sum(bool(bits & LOST) for bits in states.values()),
        lustre_limits=limits,
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
