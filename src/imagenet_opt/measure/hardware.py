"""What a machine is made of besides its CPUs, in words: a number means little without it."""

import psutil

from imagenet_opt import machine


def hardware(data_root: str, *, on_gpu: bool) -> dict[str, str]:
    """RAM, and where the data lie; with a GPU its driver and CUDA. What cannot be found out is left out."""
    found = {"memory": f"{psutil.virtual_memory().total / machine.GIB:.0f} GiB", "storage": _storage(data_root)}
    return found | (_nvidia() if on_gpu else {})


def _storage(path: str) -> str:
    """The mount and, of a local disk, what it calls itself."""
    mount = machine.find_mount(path)
    return ", ".join(filter(None, [machine.mount_of(path), machine.disk_model(mount.device) if mount else ""]))


def _nvidia() -> dict[str, str]:
    import pynvml
    import torch

    found = {"CUDA": str(torch.version.cuda)}
    try:
        pynvml.nvmlInit()
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass
    return found
