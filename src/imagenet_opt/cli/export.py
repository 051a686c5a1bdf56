"""`imagenet-opt export`: writes the network of a checkpoint as one file for other programs, and checks the file."""

from argparse import Namespace
from pathlib import Path

from imagenet_opt.cli.arguments import checkpoint_of, key_and_value
from imagenet_opt.errors import ConfigError

HELP = """Write the network of a checkpoint as one file that other programs open.

imagenet-opt export ckpt=RUN_FOLDER                           RUN_FOLDER/best.safetensors, for timm
imagenet-opt export ckpt=RUN_FOLDER/last.ckpt format=onnx     RUN_FOLDER/last.onnx, for ONNX Runtime, TensorRT, ...
imagenet-opt export ckpt=RUN_FOLDER out=models/mine.safetensors

  ckpt        a run's folder: its best.ckpt, else its last.ckpt; or a checkpoint file; also
              s3://bucket/run/best.ckpt, of a mirror
  format      safetensors (default) or onnx, which needs pip install "imagenet-opt[export]"
  out         the file to write; default: beside the checkpoint, under its name; of a URL, in the working folder
  image_size  side of the images in pixels; default: the run's validation size. An ONNX file accepts only this size

If the run averaged its weights (EMA), the averaged weights are written. The metadata of both formats contain the
architecture, and the mean and std of RGB with which pixels in [0, 1] are normalised. An ONNX file maps `images`
(float32, any number x 3 x image_size x image_size, normalised) to `logits`. The safetensors file opens in timm, and the
command prints how. Networks of model.blurpool and model.small_stem are not timm's: timm refuses such a file, and the
command prints how it opens with this package; their ONNX files open anywhere.

The file gets its name only if its logits for random images differ from the checkpoint's by at most 0.001 of the
largest."""

KEYS = ("ckpt", "format", "out", "image_size")
FORMATS = ("safetensors", "onnx")


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    from imagenet_opt.export import export
    from imagenet_opt.run.checkpoint.restore import local_checkpoint

    with local_checkpoint(arguments.ckpt) as (file, _):
        print(export(**vars(arguments) | {"ckpt": file}))


def parse(argv: list[str]) -> Namespace:
    """Parse `key=value` words. Values are not parsed as YAML, in which a folder 2026_10_04 would be a number.

    Raises ConfigError for unknown, missing and unsuitable keys.
    """
    values = dict(key_and_value(argument, KEYS) for argument in argv)
    if "ckpt" not in values:
        raise ConfigError("ckpt is missing; add ckpt=RUN_FOLDER or ckpt=FILE (imagenet-opt export --help)")
    format, size = values.get("format", "safetensors"), values.get("image_size")
    if format not in FORMATS:
        raise ConfigError(f"there is no format={format}; expected {' or '.join(FORMATS)}")
    out = Path(values["out"]).expanduser() if "out" in values else None
    if out is not None and out.suffix != f".{format}":
        raise ConfigError(f"out={out} does not end in .{format}; rename it, or choose another format=")
    if size is not None and not (size.isdecimal() and int(size) > 0):
        raise ConfigError(f"image_size={size} is not a number of pixels; expected one such as image_size=224")
    ckpt = checkpoint_of(values["ckpt"])
    beside = ckpt if isinstance(ckpt, Path) else Path(ckpt.rpartition("/")[2].removesuffix(".ckpt") + ".ckpt")
    out = out or beside.with_suffix(f".{format}")
    return Namespace(ckpt=ckpt, format=format, out=out, image_size=None if size is None else int(size))
