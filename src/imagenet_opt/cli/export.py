"""`imagenet-opt export`: the network of a checkpoint as one file that other programs open, checked before it counts."""

from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_opt.cli.arguments import key_and_value
from imagenet_opt.errors import ConfigError

if TYPE_CHECKING:  # what takes seconds to import waits until the arguments are right
    from imagenet_opt.export import Arguments

HELP = """Write the network of a checkpoint as one file that other programs open.

imagenet-opt export ckpt=RUN_FOLDER                           RUN_FOLDER/last.safetensors, for timm
imagenet-opt export ckpt=RUN_FOLDER/best.ckpt format=onnx     RUN_FOLDER/best.onnx, for ONNX Runtime, TensorRT, ...
imagenet-opt export ckpt=RUN_FOLDER out=models/mine.safetensors

  ckpt        a run's folder, of which it takes last.ckpt, or a checkpoint file
  format      safetensors (default) or onnx, which needs pip install "imagenet-opt[export]"
  out         the file to write; default: beside the checkpoint, under its name
  image_size  side of the images in pixels; default: as the run validated. An ONNX file takes this size only

The weights are the averaged ones where the run averaged them (EMA). Both formats say in their metadata how the network
is built and the mean and std of RGB that it expects to be taken out of pixels in [0, 1]. An ONNX file maps `images`
(float32, any number x 3 x image_size x image_size, normalised) to `logits`. The safetensors file opens in timm:

  timm.create_model("resnet50", num_classes=1000, checkpoint_path="last.safetensors")

The file is opened again and given random images; it appears under its name only if the logits are the checkpoint's to
within 0.001 of the largest one."""

KEYS = ("ckpt", "format", "out", "image_size")


def main(argv: list[str]) -> None:
    if {"--help", "-h"} & set(argv):
        print(HELP)
        return
    arguments = parse(argv)
    from imagenet_opt.export import export

    print(export(arguments))


def parse(argv: list[str]) -> "Arguments":
    """`key=value` words as Arguments. Values are taken as they are: in YAML a folder 2026_10_04 would be a number.

    Raises ConfigError for what is unknown, missing, or does not fit.
    """
    given = dict(key_and_value(argument, KEYS) for argument in argv)
    if "ckpt" not in given:
        raise ConfigError("ckpt is missing; add ckpt=RUN_FOLDER or ckpt=FILE (imagenet-opt export --help)")
    from imagenet_opt.export import FORMATS, Arguments

    ckpt = Path(given["ckpt"]).expanduser()
    ckpt = ckpt / "last.ckpt" if ckpt.is_dir() else ckpt
    format, size = given.get("format", "safetensors"), given.get("image_size")
    if format not in FORMATS:
        raise ConfigError(f"there is no format={format}; expected {' or '.join(FORMATS)}")
    out = Path(given["out"]).expanduser() if "out" in given else ckpt.with_suffix(f".{format}")
    if out.suffix != f".{format}":
        raise ConfigError(f"out={out} does not end in .{format}; rename it, or choose another format=")
    if size is not None and not (size.isdecimal() and int(size) > 0):
        raise ConfigError(f"image_size={size} is no number of pixels; expected one such as image_size=224")
    return Arguments(ckpt, format, out, None if size is None else int(size))
