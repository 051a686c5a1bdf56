"""Exports the network of a checkpoint as one file for other programs, and checks the file's logits."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import timm
import torch
from safetensors.torch import load_file, save
from timm.layers import BlurPool2d
from torch import Tensor, nn

from imagenet_opt.data.transforms.resize import MEAN, STD
from imagenet_opt.errors import CheckpointError, ConfigError, ModelError, first_line
from imagenet_opt.model.network import RECIPE, BlurredConv2d, build_network
from imagenet_opt.model.saved_network import open_network

NUM_IMAGES = 8
TOLERANCE = 1e-3
"""Largest allowed difference of a logit, as a share of the largest logit."""


def export(ckpt: Path, format: str, out: Path, image_size: int | None) -> str:
    """Write a temporary file, check it, and rename it to `out`. Returns a message for the user.

    format: a key of FORMATS. image_size: in pixels; None for the image size of the checkpoint.

    Raises CheckpointError; ConfigError for an unusable folder, format or image size; ModelError for a network that the
    format cannot hold, or whose file gives different logits. After an error, an older `out` is kept.
    """
    write, reopen, opening = FORMATS[format]
    _require_packages(format)
    network, config = open_network(ckpt)
    size = image_size or config["image_size"]
    images = random_images(size)
    metadata = _metadata(config | {"image_size": size})
    with torch.inference_mode():
        logits = logits_of(network, images, ckpt)
    with written(out, "another file with out=FILE") as folder:
        file = Path(folder) / out.name
        write(network, images[:2], metadata, file)
        with torch.inference_mode():
            outcome = compare(logits, reopen(file, config, images), out)
        os.replace(file, out)
    return f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB); {outcome}{opening(out, config)}"


def compare(logits: Tensor, exported: Tensor, out: Path) -> str:
    """A message about the difference of the logits. Raises ModelError if the difference exceeds TOLERANCE."""
    difference, largest = (logits - exported).abs().max().item(), logits.abs().max().item()
    if not difference <= TOLERANCE * largest:  # "not" refuses nan too
        raise ModelError(
            f"{out} was not written: its logits differ from the checkpoint's by {difference:.1e}, more than "
            f"{TOLERANCE:g} times the largest logit {largest:.1e}; try another version of torch"
        )
    same = int((logits.argmax(1) == exported.argmax(1)).sum())
    return (
        f"largest difference of logits {difference:.1e} on {len(logits)} images, same top-1 on {same} of {len(logits)}"
    )


def _require_packages(format: str) -> None:
    absent = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if format == "onnx" and absent:
        raise ConfigError(f'format=onnx needs {", ".join(absent)}; pip install "imagenet-opt[export]"')


def _metadata(config: dict[str, Any]) -> dict[str, str]:
    """Arguments of the network and normalisation of its images; all values but the name are JSON."""
    values = {key: config[key] for key in (*RECIPE[1:], "image_size") if key in config}
    values |= {"mean": config.get("mean", MEAN), "std": config.get("std", STD)}
    return {"name": config["name"]} | {key: json.dumps(value) for key, value in values.items()}


def random_images(size: int) -> Tensor:
    """Normalised images of NUM_IMAGES x 3 x size x size."""
    return torch.randn(NUM_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))


def logits_of(network: nn.Module, images: Tensor, ckpt: Path) -> Tensor:
    try:
        logits: Tensor = network(images)
    except (AssertionError, RuntimeError, ValueError) as error:
        size = images.shape[-1]
        message = f"the network does not accept images of {size} x {size} (image_size={size}): {first_line(error)}"
        raise ConfigError(message) from error
    if not logits.isfinite().all():
        raise CheckpointError(f"the network of {ckpt} gives nan or inf: training diverged; choose an earlier ckpt=")
    return logits


@contextmanager
def written(out: Path, another: str) -> Iterator[str]:
    """A temporary folder on the file system of `out`, so that a rename to `out` is atomic. another: the remedy if
    anything there cannot be written, for the ConfigError."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            yield folder
    except OSError as error:
        raise ConfigError(f"cannot write {out} ({error.strerror or error}); make room, or choose {another}") from error


def _write_safetensors(network: nn.Module, images: Tensor, metadata: dict[str, str], path: Path) -> None:
    """The kernels of blurs are written too, so that timm refuses the file instead of opening it without the blurs."""
    blurs = {name: part for name, part in network.named_modules() if isinstance(part, BlurPool2d | BlurredConv2d)}
    kernels = {f"{name}.{key}": value for name, part in blurs.items() for key, value in part.named_buffers()}
    content = save(network.state_dict() | kernels, metadata)
    path.write_bytes(content)  # save_file would make the file readable by its owner only


def is_timms(config: dict[str, Any]) -> bool:
    return not (config.get("blurpool") or config.get("small_stem"))


def _reopen_safetensors(path: Path, config: dict[str, Any], images: Tensor) -> Tensor:
    """Logits of the file, opened as `_opening` says."""
    if is_timms(config):
        name, options = config["name"], config.get("options") or {}
        opened = timm.create_model(name, num_classes=config["num_classes"], checkpoint_path=str(path), **options)
    else:
        opened = build_network(**{key: config[key] for key in RECIPE if key in config})
        opened.load_state_dict(load_file(path), strict=False)
    logits: Tensor = opened.eval()(images)
    return logits


def _opening(out: Path, config: dict[str, Any]) -> str:
    """How to open a safetensors file."""
    values = {key: config[key] for key in RECIPE[1:] if config.get(key)}
    values |= values.pop("options", {}) if is_timms(config) else {}
    arguments = ", ".join([repr(config["name"]), *(f"{key}={value!r}" for key, value in values.items())])
    if is_timms(config):
        return f"\nit opens with timm.create_model({arguments}, checkpoint_path={str(out)!r})"
    return (
        f"\nplain timm refuses it, since model.blurpool and model.small_stem are no options of timm; it opens with "
        f"network = imagenet_opt.model.network.build_network({arguments}); "
        f"network.load_state_dict(safetensors.torch.load_file({str(out)!r}), strict=False)"
    )


def _write_onnx(network: nn.Module, images: Tensor, metadata: dict[str, str], path: Path) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    try:
        program = torch.onnx.export(
            network,
            (images,),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: "batch"},),
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"torch cannot translate {metadata['name']} to ONNX ({first_line(error)}); use format=safetensors"
        ) from error
    assert program is not None
    ClearMetadataAndDocStringPass()(program.model)  # torch's metadata has stack traces with folders of this machine
    program.model.metadata_props.update(metadata)
    program.save(path, external_data=False)


def _reopen_onnx(path: Path, config: dict[str, Any], images: Tensor) -> Tensor:
    """Logits of the file, computed with several batch sizes to reveal a frozen batch size."""
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    parts = images.split([1, 3, NUM_IMAGES - 4])
    return torch.cat([torch.from_numpy(session.run(["logits"], {"images": part.numpy()})[0]) for part in parts])


FORMATS = {
    "safetensors": (_write_safetensors, _reopen_safetensors, _opening),
    "onnx": (_write_onnx, _reopen_onnx, lambda *_: ""),
}
"""Name and file suffix -> functions that write the file, compute logits from the file, and say how it opens."""
