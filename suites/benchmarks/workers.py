"""Loader workers over a large data set: seconds to the first batch, and the memory that they have of their own.

python suites/benchmarks/workers.py --images FOLDER [--samples 1281167] [--workers 8] [--batch-size 128] [--passes 10]

The index is made up of FOLDER's files, listed as often as it takes. A pass is 1000 images, in batches of --batch-size.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from imagenet_opt import machine
from imagenet_opt.data.index.folder_index import FileIndex, scan_split
from imagenet_opt.data.loader import RankInfo, train_loader
from tests.conftest import loading


def listed(index: FileIndex, num_samples: int) -> FileIndex:
    """The files of `index`, one after the other, over and over."""
    places = np.arange(num_samples) % len(index)
    lengths = np.diff(index.name_offsets)[places]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    once = index.names[: index.name_offsets[-1]]
    names = np.resize(once, offsets[-1])  # numpy repeats what it has
    return FileIndex(index.folder, index.classes, index.labels[places], names, offsets)


def own_mib() -> list[float]:
    """MiB that each child process shares with none, without the batches that it makes in shared memory."""
    return [
        sum(part.private_clean + part.private_dirty for part in child.memory_maps() if "/dev/shm" not in part.path)
        / 2**20
        for child in psutil.Process().children()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1_281_167)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--passes", type=int, default=10)
    args = parser.parse_args()
    print(f"{machine.usable_cpus()} CPUs, {machine.versions()}")
    index = listed(scan_split(args.images, "."), args.samples)
    machine.usable_cpus = lambda: args.workers  # type: ignore[assignment]  # as asked, on fewer CPUs too
    how = loading(
        batch_size=args.batch_size, image_size=224, num_workers=args.workers, resize_on="device", prefetch_factor=2
    )
    began = time.perf_counter()
    loader = train_loader(index, how, RankInfo(device=torch.device("cpu")))
    loader.finish = lambda batch: batch  # nothing is done with them
    batches = iter(loader)
    next(batches)
    print(f"first batch of {args.batch_size} with {args.workers} workers, {args.samples} samples: ", end="")
    print(f"{time.perf_counter() - began:.2f} s; memory of the workers' own {sum(own_mib()):.0f} MiB")
    for number in range(args.passes):
        for _ in range(max(1, 1000 // args.batch_size)):
            next(batches)
        mib = own_mib()
        print(f"after pass {number + 1}: {sum(mib):.0f} MiB in all, {max(mib):.0f} MiB the largest")
    loader.close()


if __name__ == "__main__":
    main()
