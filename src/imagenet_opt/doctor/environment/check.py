"""All checks of the environment, in the order in which a batch passes through the machine."""

import os

from imagenet_opt import machine
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.cpus import check_cpus
from imagenet_opt.doctor.environment.lustre import check_limits, check_released
from imagenet_opt.doctor.environment.memory import check_memory, check_page_cache, check_shared_memory
from imagenet_opt.doctor.environment.mount import check_mount, check_options
from imagenet_opt.doctor.environment.setup import Setup
from imagenet_opt.doctor.environment.tensor_cores import check_channels_last, check_multiples
from imagenet_opt.measure.storage.lustre import read_hsm_states, read_limits


def check_environment(setup: Setup) -> list[Finding]:
    """Run every rule that needs no experiment. No rule raises if this machine lacks a feature.

    Checks that need a running experiment are separate: `gpu.check_gpu`, since an idle GPU lowers its clocks and its
    link, `precision.check_precision` and `neighbours.check_swapping`.
    """
    mount = machine.find_mount(setup.folder)
    kind = "" if mount is None else mount.kind
    released = check_released(read_hsm_states(setup.files) if kind == "lustre" else None, setup.data, kind)
    limits = check_limits(read_limits() if kind == "lustre" else None, kind, num_cpus=os.cpu_count() or 1)
    return [
        check_cpus(machine.cpu_limits(), installed=os.cpu_count() or 1, slurm=os.environ),
        check_shared_memory(setup, free=machine.free_shared_memory()),
        check_memory(setup, available=machine.available_memory()),
        check_page_cache(setup, available=machine.available_memory()),
        check_mount(mount, setup.data, model="" if mount is None else machine.disk_model(mount.device)),
        check_options(mount),
        released,
        limits,
        check_multiples(setup),
        check_channels_last(setup),
    ]
