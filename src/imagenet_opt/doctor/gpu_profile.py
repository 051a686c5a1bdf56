"""Records the rates of this GPU as a profile in conf/rehearse, for rehearsals on machines without a GPU."""

import datetime
import json
import re
from dataclasses import asdict
from pathlib import Path

import torch
from omegaconf import DictConfig

from imagenet_opt.config import overrides
from imagenet_opt.config.speed import speed_settings
from imagenet_opt.errors import ConfigError, printable
from imagenet_opt.machine import versions
from imagenet_opt.measure.rehearsal import Accelerator
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span, fit_ceiling

_WARM_SECONDS, _COPY_SECONDS = 2.0, 0.5
_HEADER = """\
# @package _global_
# A simulated {name}: python train.py rehearse={stem} data.root=/fsx/imagenet
# {provenance}
# Source: {source}
defaults: [/rehearsed]
callbacks:
  rehearsal:
"""


def record_profile(config: DictConfig, *, seconds: float) -> None:
    """Measure a step of ResNet-50, its kernel launches and copies on this GPU, and write conf/rehearse/<GPU>.yaml.

    Raises ConfigError without a GPU, and for another network or image size than ResNet-50 at 224.
    """
    testbed = Testbed(config)
    if testbed.device.type != "cuda":
        raise ConfigError("--record-profile measures a GPU, but there is none here")
    if (config.model.name, testbed.config.data.image_size) != ("resnet50", 224):
        raise ConfigError(
            "--record-profile measures only model.name=resnet50 at data.image_size=224; do not change these keys"
        )
    testbed.samples.warm(_WARM_SECONDS)
    timing, copy = testbed.compute(Span(seconds / 2), beside=False), testbed.copy(Span(_COPY_SECONDS))
    assert copy is not None  # on a GPU
    rate = fit_ceiling(timing).images_per_second
    name, torch_version = torch.cuda.get_device_name(), versions()["torch"]
    profile = Accelerator(
        name=name,
        images_per_second=round(rate, 1),
        launch_seconds=round(min(timing.launch_seconds), 5),
        copy_gb_per_second=round(copy.images_per_second / testbed.loading.batch_size * copy.facts["batch_mb"] / 1e3, 2),
        source=f"imagenet-opt doctor --record-profile, torch {torch_version}, {speed_settings(testbed.config)}",
        estimate=False,
    )
    file = overrides.config_folder() / "rehearse" / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}.yaml"
    write_profile(file, profile, machine=f"{name}, torch {torch_version}")
    print(f"{name}: {rate:.0f} images/s; written to {file}, for rehearse={file.stem}")


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
