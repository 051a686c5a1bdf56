"""`imagenet-opt hydrate`: reads every file of a lazy mount once, or fills the local cache of a URL."""

import sys
from argparse import Namespace
from functools import partial

from imagenet_opt.cli.arguments import Parser, between

HELP = """Read every file of a lazy mount once, with hundreds of requests in flight.

FSx for Lustre linked to S3, and mounts of S3 itself, list files that they do not hold yet. The first read of such a
file fetches it, which takes 0.1 to 1 s. A loader with 16 reads in flight spends its first epoch on this.

imagenet-opt hydrate data.root=/fsx/imagenet                     then train
imagenet-opt hydrate data.root=/fsx/imagenet --in-flight 512

  --in-flight N      number of files to request at a time, 1 to 900 (default 256)

Any override of train.py may be added, such as data.train_folder, data.val_folder, data.cache_dir or
data.read_timeout. For packed data, the shards are read. Each file is read completely and discarded; on Lustre only
files whose data Lustre does not hold.

For data.root=s3://... (gs://, https://) the local cache in data.cache_dir is filled, as far as data.cache_gb allows:

imagenet-opt hydrate data.root=s3://bucket/imagenet data.cache_dir=/nvme/cache

Stopped? Run the same command again. Files that cannot be read are listed at the end; the exit status is then 1. A file
system that fills up may release files again; to keep them, imagenet-opt pack them onto a local disk."""

MOST_IN_FLIGHT = 900
"""Fits the usual limit of 1024 open files."""


def main(argv: list[str]) -> None:
    """Exit with status 1 if files could not be read."""
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders, data_of

    config = composed(tuple(options.overrides), partial(check_folders, or_demo=False))
    from imagenet_opt.hydrate.hydrate import hydrate  # imports torch

    try:
        tally = hydrate(data_of(config), in_flight=options.in_flight)
    except KeyboardInterrupt:
        print("stopped; run the same command again to fetch the rest", file=sys.stderr)
        raise
    if tally.bad:
        sys.exit(1)


def parse(argv: list[str]) -> Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("hydrate")
    parser.add_argument("--in-flight", type=between(1, MOST_IN_FLIGHT), default=256)
    return parser.parse_intermixed_args(argv)
