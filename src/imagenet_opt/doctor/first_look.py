"""Checks a machine and a configuration before any experiment."""

import contextlib
import os
from collections import Counter

import numpy as np
import torch

from imagenet_opt import machine
from imagenet_opt.data.decode.image_file import REFUSED, open_image
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.check import check_environment
from imagenet_opt.doctor.environment.precision import check_precision
from imagenet_opt.doctor.environment.setup import Setup
from imagenet_opt.doctor.facts import Facts
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.probe.testbed import Testbed

_NUM_CHECKED = 200
"""Files whose places and sizes are checked; they stand for the data set."""


def facts_of_run(testbed: Testbed) -> Facts:
    """Facts that need no experiment: the machine's CPUs, the configuration, and which files are in memory."""
    how, trainer, limits = testbed.loading, testbed.config.trainer, machine.cpu_limits()
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
        resize_on="worker" if how.resize_on == "auto" and on_cpu else how.resize_on,
        reads_in_flight=str(how.reads_in_flight),
        precision=str(trainer.precision),
        rated_images_per_second=testbed.rated,
        cached_share=cached.share,
        cached_share_method=cached.method,
    )
    if (profile := testbed.simulated) is not None:
        facts.profile_estimate = bool(profile.get("estimate", True))
        rate = f"{profile.images_per_second:g} images/s{' (estimate)' if facts.profile_estimate else ''}"
        facts.profile = f"{rate}; source: {profile.get('source', 'unknown')}"
    return facts


def check_machine(testbed: Testbed) -> list[Finding]:
    """Run all checks that need no experiment. Some samples must have been read (`Samples.read_few`)."""
    config, how, samples = testbed.config, testbed.loading, testbed.samples
    configured = {"num_workers": testbed.num_workers, "prefetch_factor": testbed.prefetch_factor}
    configured |= {name: getattr(how, name) for name in configured if getattr(how, name) != "auto"}
    return check_environment(
        Setup(
            data=DataPlace.configured(config.data, packed=samples.is_packed),
            folder=str(samples.index.folder),
            files=tuple(extent.path for extent in samples.extents(samples.rows[:_NUM_CHECKED])),
            data_bytes=int(mb_per_image(samples.encoded) * 1e6 * len(samples.index)),
            **configured,
            fitted_workers=testbed.num_workers,
            fitted_prefetch=testbed.prefetch_factor,
            batch_bytes=testbed.batch_bytes,
            batch_size=how.batch_size,
            precision=str(config.trainer.precision),
            widths=testbed.widths,
            num_classes=config.model.num_classes,
            channels_last=bool(config.callbacks.get("acceleration", {}).get("channels_last", False)),
            cuda_index=testbed.device.index,
        )
    )


def mb_per_image(encoded: list[bytes]) -> float:
    """Mean size of encoded images, in MB."""
    return float(np.mean([len(image) for image in encoded])) / 1e6


def megapixels(encoded: list[bytes]) -> float:
    """Mean size of encoded images, in megapixels; skips images that cannot be opened."""
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
        precision, dtypes = testbed.dtypes()
    return check_precision(dtypes, precision=precision, capability=capability, conv_tf32=conv_tf32)
