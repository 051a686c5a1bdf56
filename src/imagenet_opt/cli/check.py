"""`imagenet-opt check`: finds faults of a data set before training."""

import argparse
import sys
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial

from imagenet_opt.cli.arguments import Parser, between, checkpoint_of, new_file, write_outputs
from imagenet_opt.config.overrides import last_value, without
from imagenet_opt.errors import ConfigError

HELP = """Find the faults of a data set before hours of training: classes, counts, bad files, duplicates, wrong labels.

imagenet-opt check data.root=/fsx/imagenet
imagenet-opt check data.root=/fsx/imagenet ckpt=RUN_FOLDER           does a trained network agree with val's folders?
imagenet-opt check data.root=/fsx/imagenet --all --json check.json

  ckpt=PATH     a checkpoint of train.py with these classes, or a run's folder, whose best.ckpt is used; also
                s3://bucket/run/best.ckpt, of a mirror
  --sample N    number of samples of each split to decode, compare and classify, the same from every class
                (default 2000)
  --all         use all samples
  --json FILE   write all results

Any override of train.py may be added, such as data.val_folder=valid.

It looks at the classes and the images per class, empty and damaged files, validation images that are also in train, and
the GPU memory of a training step; with ckpt, whether folders have the names of other classes: finding single wrong
folders takes five images per class or more, such as --sample 5000. docs/data.md has each verdict.

Exit status: 0 without errors, but perhaps with warnings; 1 with errors; 2 if the check was impossible."""


def main(argv: list[str]) -> None:
    """Exit with status 1 if a verdict is an error."""
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders

    config = composed(options.overrides, partial(check_folders, or_demo="data=demo" in options.overrides))
    from imagenet_opt.check.dataset import check  # imports torch
    from imagenet_opt.check.result import show
    from imagenet_opt.run.checkpoint.restore import local_checkpoint

    with nullcontext((None, "")) if options.ckpt is None else local_checkpoint(options.ckpt) as (ckpt, _):
        verdicts = check(config, options.overrides, ckpt=ckpt, num_samples=options.sample)
    show(verdicts)
    write_outputs(options, lambda: {"command": ["imagenet-opt", "check", *argv], "verdicts": [*map(asdict, verdicts)]})
    if any(verdict.level == "error" for verdict in verdicts):
        sys.exit(1)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; `sample` is None for all samples. Raises ConfigError for unsuitable options."""
    parser = Parser("check")
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--sample", type=between(1, 10**9), default=2000)
    number.add_argument("--all", action="store_const", dest="sample", const=None)
    parser.add_argument("--json", type=new_file)
    options = parser.parse_intermixed_args(argv)
    place = last_value(options.overrides, "ckpt")
    if place == "":
        raise ConfigError("ckpt has no value; expected ckpt=RUN_FOLDER or ckpt=FILE")
    options.ckpt = None if place is None else checkpoint_of(place)
    options.overrides = tuple(without(options.overrides, "ckpt"))
    return options
