"""Model FLOPs utilisation (MFU): the share of the GPU's peak that the training used."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from imagenet_opt.probe.device_peak import matmul_peak
from imagenet_opt.probe.model_flops import TRAINING_FORWARDS, forward_flops, known_peak

_KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
_PRECISIONS = {"bf16-mixed": "bf16", "bf16-true": "bf16", "16-mixed": "fp16", "16-true": "fp16", "32-true": "fp32"}
_PEAK_SECONDS = 0.5


def mfu(trainer: Trainer, images_per_second: float) -> dict[str, float]:
    """Model FLOPs utilisation of a fit that has ended, and the peak of all its GPUs, by metric name.

    Empty on a CPU, for images of several sizes, and where FLOPs or peak are unknown.
    """
    device, size = trainer.strategy.root_device, _image_size(trainer)
    kind = _kind(trainer, device)
    if device.type != "cuda" or size is None or kind is None:
        return {}
    peak = known_peak(torch.cuda.get_device_name(device), kind) or _measured_peak(device, kind)
    flops = _forward_flops(trainer, size)
    if peak is None or flops is None:
        return {}
    peak *= trainer.world_size
    done = TRAINING_FORWARDS * flops * images_per_second / 1e12
    return {"throughput/mfu_fraction": done / peak, "throughput/peak_tflops_per_second": peak}


def _kind(trainer: Trainer, device: torch.device) -> str | None:
    """Number format of the matrix products: "bf16", "fp16", "tf32" or "fp32"; None for other precisions.

    callbacks.acceleration resets torch's TF32 setting at the end of a fit, so the callback's key decides.
    """
    kind = _PRECISIONS.get(str(trainer.precision))
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    if kind != "fp32" or not any(getattr(callback, "tf32", False) for callback in callbacks):
        return kind
    return "tf32" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else kind


def _image_size(trainer: Trainer) -> int | None:
    """Side in pixels; None if the images of the epochs had several sizes."""
    loader: Any = trainer.train_dataloader
    size_of = getattr(getattr(loader, "sampler", None), "size_of", None)
    sizes = set(map(size_of, range(trainer.current_epoch + 1))) if size_of is not None else set()
    return sizes.pop() if len(sizes) == 1 else None


def _forward_flops(trainer: Trainer, image_size: int) -> int | None:
    try:
        return forward_flops(trainer.lightning_module.net, image_size)  # type: ignore[arg-type]
    except Exception:  # the network does not run on the device `meta`
        return None


def _measured_peak(device: torch.device, kind: str) -> float | None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    try:
        return matmul_peak(device, _KINDS[kind], seconds=_PEAK_SECONDS).tflops_per_second
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.set_float32_matmul_precision(before)
