"""`imagenet-opt export`: writes the network of a checkpoint for other programs, and checks what it wrote."""

import re
from argparse import Namespace
from pathlib import Path

from imagenet_opt.cli.arguments import Parser, checkpoint_of, key_and_value, number_of
from imagenet_opt.errors import ConfigError

HELP = """Write the network of a checkpoint as one file that other programs open, or for the Hugging Face Hub.

imagenet-opt export ckpt=RUN_FOLDER                           RUN_FOLDER/best.safetensors, for timm
imagenet-opt export ckpt=RUN_FOLDER/last.ckpt format=onnx     RUN_FOLDER/last.onnx, for ONNX Runtime, TensorRT, ...
imagenet-opt export ckpt=RUN_FOLDER out=models/mine.safetensors
imagenet-opt export ckpt=RUN_FOLDER hub=OWNER/NAME            to the Hugging Face Hub, where timm finds it

  ckpt        a run's folder: its best.ckpt, else its last.ckpt; or a checkpoint file; also
              s3://bucket/run/best.ckpt, of a mirror
  format      safetensors (default) or onnx, which needs pip install "imagenet-opt[export]"
  out         the file to write; default: beside the checkpoint, under its name; of a URL, in the working folder
  image_size  side of the images in pixels; default: the run's validation size. An ONNX file accepts only this size
  hub         upload timm's config.json, model.safetensors and a model card to this repository, with the token of `hf
              auth login`; a new repository is public, and the README.md of an existing one is kept
  --dry-run FOLDER   with hub=: write these files into a new folder, and upload nothing

If the run averaged its weights (EMA), the averaged weights are written. The metadata of both formats contain the
architecture, and the mean and std of RGB with which pixels in [0, 1] are normalised. An ONNX file maps `images`
(float32, any number x 3 x image_size x image_size, normalised) to `logits`. The command prints how the file opens: in
timm, but with this package if model.blurpool or model.small_stem made a network that is not timm's.

The numbers of the model card are those of record.json beside the checkpoint: how it was trained, and the accuracy of
`imagenet-opt evaluate` for these very weights. The card names what is not known. For timm, config.json says that images
are resized and cropped as in the run's validation.

A file gets its name, and is uploaded, only if its logits for random images differ from the checkpoint's by at most
0.001 of the largest."""

KEYS = ("ckpt", "format", "out", "image_size", "hub")
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
FORMATS = ("safetensors", "onnx")


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    from imagenet_opt.run.checkpoint.restore import local_checkpoint

    with local_checkpoint(arguments.ckpt) as (file, _):
        if arguments.hub is None:
            from imagenet_opt.export.export import export

            print(export(file, arguments.format, arguments.out, arguments.image_size))
        else:
            from imagenet_opt.export.hub import export_hub
            from imagenet_opt.run.record import RECORD

            print(export_hub(file, file.with_name(RECORD), arguments.hub, arguments.dry_run, arguments.image_size))


def parse(argv: list[str]) -> Namespace:
    """Parse `key=value` words and --dry-run. Values are not parsed as YAML: a folder 2026_10_04 would be a number.

    Raises ConfigError for unknown, missing and unsuitable keys.
    """
    parser = Parser("export")
    parser.add_argument("--dry-run", type=Path)
    options = parser.parse_intermixed_args(argv)
    values = dict(key_and_value(word, KEYS, ("--dry-run",)) for word in options.overrides)
    if "ckpt" not in values:
        raise ConfigError("ckpt is missing; add ckpt=RUN_FOLDER or ckpt=FILE (imagenet-opt export --help)")
    format = values.get("format", "safetensors")
    image_size = number_of("image_size", values["image_size"], 1, 65500) if "image_size" in values else None
    if format not in FORMATS:
        raise ConfigError(f"there is no format={format}; expected {' or '.join(FORMATS)}")
    out = Path(values["out"]).expanduser() if "out" in values else None
    if out is not None and out.suffix != f".{format}":
        raise ConfigError(f"out={out} does not end in .{format}; rename it, or choose another format=")
    hub, dry_run = values.get("hub"), options.dry_run
    if hub is None and dry_run is not None:
        raise ConfigError(f"--dry-run {dry_run} needs hub=OWNER/NAME, the repository of the model card")
    if hub is not None and not _REPOSITORY.fullmatch(hub):
        raise ConfigError(f"hub={hub} is no repository of the Hugging Face Hub; expected hub=OWNER/NAME")
    if hub is not None and (words := [f"{key}={values[key]}" for key in ("format", "out") if key in values]):
        raise ConfigError(f"{words[0]} has no effect with hub=; leave one of them out")
    ckpt = checkpoint_of(values["ckpt"])
    beside = ckpt if isinstance(ckpt, Path) else Path(ckpt.rpartition("/")[2].removesuffix(".ckpt") + ".ckpt")
    out = out or beside.with_suffix(f".{format}")
    dry_run = dry_run and dry_run.expanduser()
    return Namespace(ckpt=ckpt, format=format, out=out, image_size=image_size, hub=hub, dry_run=dry_run)
