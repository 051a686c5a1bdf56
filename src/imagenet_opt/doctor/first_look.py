"""Checks a machine and a configuration before any experiment."""

import contextlib
import os
from collections import Counter

import numpy as np
import torch
from torch import nn

from imagenet_opt import machine
from imagenet_opt.config.build import build_trainer
from imagenet_opt.data.budget import most_workers
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.display.progress import size
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.cpus import check_cpus
from imagenet_opt.doctor.environment.lustre import check_limits, check_released
from imagenet_opt.doctor.environment.memory import Batches, check_memory, check_page_cache, check_shared_memory
from imagenet_opt.doctor.environment.mount import check_mount, check_options
from imagenet_opt.doctor.environment.tensor_cores import check_channels_last, check_multiples, check_precision
from imagenet_opt.doctor.facts import Facts
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.errors import printable
from imagenet_opt.measure.storage.lustre import read_hsm_states, read_limits
from imagenet_opt.measure.telemetry.dtypes import precision_of_convolutions
from imagenet_opt.probe.remote_samples import RemoteSamples
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throwaway_run import only, run_folder

_NUM_CHECKED = 200
"""Files that represent the data set in checks of places and sizes."""


def facts_of_run(testbed: Testbed) -> Facts:
    """Facts that need no experiment: the CPUs, the configuration, and which files are in memory."""
    loading, trainer, limits = testbed.loading, testbed.config.trainer, machine.cpu_limits()
    cached = testbed.samples.residency()  # before anything reads a sample
    on_cpu = testbed.device.type == "cpu"
    facts = Facts(
        usable_cpus=machine.usable_cpus(),
        machine_cpus=os.cpu_count() or 1,
        num_workers=testbed.num_workers,
        prefetch_factor=testbed.prefetch_factor,
        has_gpu=not on_cpu,
        packed=testbed.samples.is_packed,
        in_slurm="SLURM_JOB_ID" in os.environ,
        num_samples=len(testbed.samples.index),
        log_every_n_steps=trainer.log_every_n_steps,
        cpu_limit=min(limits, key=lambda name: limits[name]),
        resize_on="worker" if loading.resize_on == "auto" and on_cpu else loading.resize_on,
        reads_in_flight=str(loading.reads_in_flight),
        precision=str(trainer.precision),
        rated_images_per_second=testbed.rated,
        cached_share=cached.share,
        cached_share_method=cached.method,
    )
    if isinstance(testbed.samples, RemoteSamples):
        facts.cache_room, facts.lazy = testbed.samples.cache_room, False
        facts.cache_evidence = cache_text(testbed.samples)
    if (profile := testbed.simulated) is not None:
        facts.profile_estimate = bool(profile.get("estimate", True))
        rate = f"{profile.images_per_second:g} images/s{' (estimate)' if facts.profile_estimate else ''}"
        facts.profile = f"{rate}; source: {profile.get('source', 'unknown')}"
    return facts


def check_machine(testbed: Testbed) -> list[Finding]:
    """Run all checks that need no experiment, in the order in which a batch passes through the machine. No check raises
    an error if the machine lacks a feature. Some samples must have been read (`Samples.read_few`)."""
    config, loading, samples = testbed.config, testbed.loading, testbed.samples
    batches = _batches(testbed)
    installed, available = os.cpu_count() or 1, machine.available_memory()
    has_gpu, precision = testbed.device.type == "cuda", str(config.trainer.precision)
    channels_last = bool(config.callbacks.get("acceleration", {}).get("channels_last", False))
    return [
        check_cpus(machine.cpu_limits(), installed=installed, slurm=os.environ),
        check_shared_memory(batches, free=machine.free_shared_memory()),
        check_memory(batches, available=available),
        *([] if isinstance(samples, RemoteSamples) else _check_files(testbed, batches, available=available)),
        check_multiples(
            has_gpu=has_gpu,
            precision=precision,
            batch_size=loading.batch_size,
            num_classes=config.model.num_classes,
            channels=_channels(testbed),
        ),
        check_channels_last(has_gpu=has_gpu, precision=precision, channels_last=channels_last),
    ]


def _check_files(testbed: Testbed, batches: Batches, *, available: int) -> list[Finding]:
    """Checks of the mount of a folder, and of the memory for its files."""
    samples = testbed.samples
    data = DataPlace.configured(testbed.config.data, packed=samples.is_packed)
    data_bytes = int(mb_per_image(samples.encoded) * 1e6 * len(samples.index))
    mount = machine.find_mount(str(samples.index.folder))
    kind, model = ("", "") if mount is None else (mount.kind, machine.disk_model(mount.device))
    is_lustre = kind == "lustre"
    files = [extent.path for extent in samples.extents(samples.rows[:_NUM_CHECKED])]
    return [
        check_page_cache(batches, data, data_bytes=data_bytes, available=available),
        check_mount(mount, data, model=model),
        check_options(mount),
        check_released(read_hsm_states(files) if is_lustre else None, data, kind),
        check_limits(read_limits() if is_lustre else None, kind, num_cpus=os.cpu_count() or 1),
    ]


def cache_text(samples: RemoteSamples) -> str:
    """How much of the data the local cache keeps, and what limits it."""
    if samples.cache is None:
        return "there is no local cache (data.cache_gb=0, or data.cache_dir cannot be written)"
    total = int(samples.cache.starts[-1])
    kept, place = round(samples.cache_room * total), printable(str(samples.cache.path))
    limit = "data.cache_gb" if samples.loading.cache_gb is not None else "the disk, of which 5 % stay free"
    limit = samples.cache.stopped or limit
    text = f"the local cache {place} keeps {size(kept)} of the {size(total)}"
    return text if kept == total else f"{text}; the limit is {limit}"


def _batches(testbed: Testbed) -> Batches:
    loading, workers, ahead = testbed.loading, testbed.num_workers, testbed.prefetch_factor
    place = testbed.rank_info
    most = most_workers(processes=place.local_processes, sharing_cpus=place.sharing_cpus)
    return Batches(
        num_workers=workers if loading.num_workers == "auto" else min(loading.num_workers, most),
        prefetch_factor=ahead if loading.prefetch_factor == "auto" else loading.prefetch_factor,
        fitted_workers=workers,
        fitted_prefetch=ahead,
        batch_bytes=testbed.batch_bytes,
    )


def mb_per_image(encoded: list[bytes]) -> float:
    """Mean size of encoded images, in MB."""
    return float(np.mean([len(image) for image in encoded])) / 1e6


def megapixels(encoded: list[bytes]) -> float:
    """Mean size of encoded images, in megapixels. Images that cannot be opened do not count."""
    sizes = []
    for image in encoded[:_NUM_CHECKED]:
        with contextlib.suppress(*REFUSED):
            width, height = open_image(image).size
            sizes.append(width * height / 1e6)
    return float(np.mean(sizes or [0.0]))


def check_types(testbed: Testbed, *, conv_tf32: bool) -> Finding:
    """Check the types of convolutions in one step of a few images. conv_tf32: whether TF32 was on while training."""
    capability = torch.cuda.get_device_capability(testbed.device) if testbed.device.type == "cuda" else None
    precision, dtypes = str(testbed.config.trainer.precision), Counter[str]()
    if capability is not None:
        precision, dtypes = used_dtypes(testbed)
    return check_precision(dtypes, precision=precision, capability=capability, conv_tf32=conv_tf32)


def used_dtypes(testbed: Testbed) -> tuple[str, Counter[str]]:
    """The trainer's precision, and the dtypes of convolutions and matrix products in a step."""
    with run_folder(only(testbed.config, callbacks=())) as alone:
        trainer = build_trainer(alone)
    plugin, image_size = trainer.precision_plugin, testbed.loading.image_size
    net = plugin.convert_module(testbed.network()).to(testbed.device)
    images = torch.randn(8, 3, image_size, image_size, device=testbed.device)

    def step() -> None:
        with plugin.forward_context():
            net(plugin.convert_input(images)).float().sum().backward()

    return str(trainer.precision), precision_of_convolutions(step)


def _channels(testbed: Testbed) -> tuple[int, ...]:
    """Numbers of channels of convolutions and linear layers, except the image's three."""
    with torch.device("meta"):
        net = testbed.network()
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return tuple(num for layer in layers for num in tuple(layer.weight.shape[:2]) if num != 3)
