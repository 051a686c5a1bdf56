"""Speeds of an accelerator for rehearsals on machines without it, and their files in conf/rehearse."""

import datetime
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from imagenet_opt.errors import ConfigError, printable

_IMAGE_SIZE = 224
_FORWARD_SHARE = 1 / 3
"""Share of a training step: the backward pass takes about twice as many operations as the forward pass."""
_HEADER = """\
# @package _global_
# A simulated {name}: python train.py rehearse={stem} data.root=/fsx/imagenet
# {provenance}
# Source: {source}
defaults: [/rehearsed]
callbacks:
  rehearsal:
"""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Speeds of a device that trains ResNet-50 on images of 224 pixels in mixed precision.

    launch_seconds: CPU time of the host to launch the kernels of one training step. copy_gb_per_second: from pinned
    memory to the device. source: origin of the numbers. estimate: whether the numbers were not measured on this kind of
    device.

    Raises ConfigError.
    """

    name: str
    images_per_second: float
    launch_seconds: float
    copy_gb_per_second: float
    source: str = "unknown"
    estimate: bool = True

    def __post_init__(self) -> None:
        for key in ("images_per_second", "copy_gb_per_second"):
            if not 0 < (value := getattr(self, key)) < math.inf:
                raise ConfigError(f"callbacks.rehearsal.{key}={value} must be above 0")
        if not 0 <= self.launch_seconds < math.inf:
            raise ConfigError(f"callbacks.rehearsal.launch_seconds={self.launch_seconds} must be at least 0")

    def __str__(self) -> str:
        return f"simulated {printable(self.name)}{' (estimate)' if self.estimate else ''}"

    def step_seconds(self, num_images: int, image_size: float, *, training: bool = True) -> float:
        """Seconds of computation, in proportion to the area of the images."""
        seconds = num_images / self.images_per_second * (image_size / _IMAGE_SIZE) ** 2
        return seconds if training else seconds * _FORWARD_SHARE

    def step_launch_seconds(self, *, training: bool = True) -> float:
        return self.launch_seconds if training else self.launch_seconds * _FORWARD_SHARE

    def copy_seconds(self, num_bytes: int) -> float:
        """Seconds to copy to the device."""
        return num_bytes / (self.copy_gb_per_second * 1e9)


def write_profile(file: Path, accelerator: Accelerator, *, machine: str) -> None:
    """Write an option for the group conf/rehearse, with the machine that it was measured on. Raises ConfigError."""
    origin = "Estimated on" if accelerator.estimate else "Measured on"
    provenance = f"{origin} {printable(machine)}, {datetime.date.today().isoformat()}"
    name, source = printable(accelerator.name), printable(accelerator.source)
    text = _HEADER.format(name=name, stem=file.stem, provenance=provenance, source=source)
    text += "".join(f"    {key}: {json.dumps(value)}\n" for key, value in asdict(accelerator).items())  # JSON is YAML
    try:
        file.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; choose another file") from error
