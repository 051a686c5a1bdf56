"""`imagenet-opt pack`: packs a folder of images into tar shards with an index, and verifies packed data."""

import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagenet_opt.cli.arguments import key_and_value, local_or_url, number_of
from imagenet_opt.display.progress import progress, size
from imagenet_opt.errors import ConfigError, ShardMismatch, printable
from imagenet_opt.machine import usable_cpus
from imagenet_opt.object_storage import is_url

HELP = """Pack a data set into a few hundred tar files ("shards") with an index.

Shared storage is slow for many small files. Shards are read in large blocks, can be copied at the speed of a local
disk, and can contain smaller images.

imagenet-opt pack data.root=/fsx/imagenet out=/nvme/imagenet                     keeps all bytes of the images
imagenet-opt pack data.root=/fsx/imagenet out=/nvme/imagenet-224 for=224         smaller images, for training at 224 px
imagenet-opt pack data.root=/fsx/imagenet out=s3://bucket/imagenet               into a bucket (also gs://)
imagenet-opt pack out=/nvme/imagenet --verify                                    checks the packed data

Then: imagenet-opt train data.root=/nvme/imagenet. WebDataset and any tar reader open the shards too. data.root is
only read.

  data.root          folder with train/ and val/, each with a folder per class, or a tar file per class; or with
                     ImageNet's own tars; or the URL of a bucket with a folder per class; or Parquet files, in a folder,
                     in a bucket or on the Hugging Face Hub (hf://datasets/OWNER/NAME)
  out                folder for train/ and val/ with shard-00000.tar, ..., their index and rejected.csv; or the URL of a
                     bucket. Each process writes one shard into data.cache_dir, uploads and removes it
  for                224 or 176, the width of training images: reencode=all and max_side=500 or 400, as FFCV's data sets
                     for ResNet-50 and ResNet-18 (docs/packing.md); max_side and quality replace its values
  max_side           images with a longer side are shrunk to this number of pixels; default: keep all bytes
  quality            of the encoded JPEGs, 1 to 95; default 90
  reencode           shrunk: encode only images that are shrunk (default). all: also others whose files become smaller
  shard_mb           approximate MB per shard; default 256
  workers            number of processes; default auto, one for each usable CPU
  seed               of the order of the training images in the shards; default 0
  val_labels         for a val/ without class folders: Kaggle's list, the development kit or a list of synsets
                     (found in val/ or up to four folders above), or a file with lines FILE CLASS
  data.train_folder  below data.root; default train
  data.val_folder    below data.root; default val
  data.max_pixels    images of more pixels are left out, as in training; default 100000000
  data.cache_dir     local folder for shards on their way to a bucket; default ~/.cache/imagenet_opt
  data.read_timeout  seconds to wait for a file; a read that fails is repeated for half of this time; default 120
  --verify           compare the shards in out with their checksums and list those that are damaged; needs only out

Files that are not images, or cannot be read while others can, are left out and listed with the reason in rejected.csv.
Stopped, even by kill -9 or a full disk? Run the same command again; it resumes, and the result is the same to the byte.
The same command also rewrites a shard that was lost or truncated (docs/packing.md)."""

FLAGS = ("--verify",)
KEYS = (
    "data.root", "out", "for", "max_side", "quality", "reencode", "shard_mb", "workers", "seed", "val_labels",
    "data.train_folder", "data.val_folder", "data.max_pixels", "data.cache_dir", "data.read_timeout",
)  # fmt: skip
_ENDS: dict[str, tuple[float, float]] = {
    "max_side": (1, 65500), "quality": (1, 95), "seed": (0, 2**63), "data.max_pixels": (1, 2**29),
    "shard_mb": (1e-6, 1_000_000), "workers": (1, 1024), "data.read_timeout": (1e-3, 1_000_000),
}  # fmt: skip
"""Key of a number -> its least and its greatest value; whole numbers have a whole least value."""


def main(argv: list[str]) -> None:
    arguments = parse(argv)

    from imagenet_opt.display.terminal_table import print_sentence

    try:
        print_sentence(_verify(arguments) if arguments.verify else _pack(arguments))
    except KeyboardInterrupt:
        kept = "" if arguments.verify else "; what is packed is kept; run the same command again to resume"
        print(f"stopped{kept}", file=sys.stderr)
        raise


def parse(argv: list[str]) -> Namespace:
    """Parse `key=value` words and flags. Values are not parsed as YAML.

    Raises ConfigError for unknown, missing and unsuitable keys.
    """
    words = dict(key_and_value(word, KEYS, FLAGS) for word in argv if word not in FLAGS)
    verify = "--verify" in argv
    for key in ("out",) if verify else ("data.root", "out"):
        if key not in words:
            raise ConfigError(f"{key} is missing; add {key}=FOLDER (imagenet-opt pack --help)")
    given = [key for key in _ENDS if key in words and f"{key}={words[key]}" != "workers=auto"]
    numbers = {key: number_of(key, words[key], *_ENDS[key]) for key in given}
    if words.get("reencode", "shrunk") not in ("shrunk", "all"):
        raise ConfigError(f"reencode={words['reencode']} must be shrunk or all")
    if words.get("for", "224") not in ("224", "176"):
        raise ConfigError(f"for={words['for']} must be 224 or 176; max_side=PIXELS sets any size")
    from imagenet_opt.pack.image import PRESETS, PackOptions  # imports Pillow, which --help and mistakes do not need

    workers = numbers.pop("workers", None) or usable_cpus()
    read_timeout = numbers.pop("data.read_timeout", 120.0)
    options: dict[str, Any] = {key.removeprefix("data."): number for key, number in numbers.items()}
    options |= {"reencode": words["reencode"]} if "reencode" in words else {}
    return Namespace(
        root=local_or_url(words["data.root"], "data.root") if "data.root" in words else None,
        out=local_or_url(words["out"], "out"),
        options=replace(PRESETS[int(words["for"])] if "for" in words else PackOptions(), **options),
        workers=workers,
        read_timeout=read_timeout,
        val_labels=Path(words["val_labels"]).expanduser() if "val_labels" in words else None,
        cache_dir=words.get("data.cache_dir"),
        train_folder=words.get("data.train_folder", "train"),
        val_folder=words.get("data.val_folder", "val"),
        verify=verify,
    )


def _pack(arguments: Namespace) -> str:
    """Pack, or resume packing. Returns a line about the result. Raises the errors of `imagenet_opt.pack`."""
    from imagenet_opt.data.index.open_index import find_source

    splits = [arguments.train_folder]
    if arguments.val_labels is None:
        splits.append(arguments.val_folder)
    for split in splits if isinstance(arguments.root, Path) else ():
        find_source(arguments.root, split)  # raises DatasetNotFound before imports that take seconds
    from imagenet_opt.pack.pack import pack

    began = time.perf_counter()
    with progress("packing", "images") as show:
        packed = pack(on_progress=show, **{key: value for key, value in vars(arguments).items() if key != "verify"})
    seconds = time.perf_counter() - began
    content = (
        f"{packed.images} images, {packed.rejected} rejected{' (rejected.csv says why)' if packed.rejected else ''}, "
        f"{size(packed.bytes_in)} in, {size(packed.bytes_out)} out"
    )
    if not packed.images_seen:
        return f"{arguments.out} is packed already: {content}; nothing to do"
    return f"{arguments.out} is packed: {content}, {seconds:.1f} s, {packed.images_seen / seconds:.0f} images/s"


def _verify(arguments: Namespace) -> str:
    """Compare the packed data with its checksums. Returns a line about the result.

    Raises ConfigError if nothing was packed; ShardMismatch after a line for each damaged shard.
    """
    from imagenet_opt.pack.verify import open_packed, verify

    out, names, lines = arguments.out, ("train", "val"), list[str]()
    splits = [open_packed(f"{out}/{name}" if is_url(out) else out / name) for name in names]
    for name, split in zip(names, splits, strict=True):
        with progress(f"verifying, {name}", "images") as show:
            lines += verify(split, arguments.workers, show)
    for line in lines:
        print(printable(line))
    if lines:
        raise ShardMismatch(
            f"{len(lines)} shards of {out} (out) are damaged, listed above; remove them and run the same pack command "
            "again, which writes them anew"
        )
    return f"{out} is intact: all {sum(len(split.index) for split in splits)} images match their checksums"
