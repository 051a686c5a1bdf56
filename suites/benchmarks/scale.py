"""How index, order, first batch and resume grow with the number of samples: simulated packs of up to 100 million.

    python -m suites.benchmarks.scale --images FOLDER [--samples 1281167 10000000 100000000] [--workers 2]

The index is written to disk in the format of `imagenet-opt pack`, about 52 bytes a sample. Each read of a sample
returns the bytes of one of 256 files of FOLDER (class folders), so nothing is read from storage.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from imagenet_opt.data.storage.memory_store import MemoryStore

from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.index.shard_index import COLUMNS, FORMAT, INDEX, ShardIndex, load_index
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from tests.conftest import loading

NUM_FILES, NUM_CLASSES, PER_SHARD, IMAGE_BYTES, NAME_BYTES = 256, 1000, 2000, 110_000, 16
BATCH = 128


def write_index(folder: Path, num: int) -> None:
    """Columns and index.json of a pack of `num` samples, without its shards."""
    folder.mkdir()
    places = np.arange(num)
    numbers = {
        "labels": places % NUM_CLASSES,
        "shard_ids": places // PER_SHARD,
        "offsets": places % PER_SHARD * IMAGE_BYTES,
        "sizes": np.full(num, IMAGE_BYTES),
        "checksums": np.zeros(num),
        "names": np.full(num * NAME_BYTES, ord("x")),
        "name_offsets": np.arange(num + 1) * NAME_BYTES,
    }
    for name, values in numbers.items():
        np.save(folder / f"{name}.npy", values.astype(COLUMNS[name]))
    shards = [{"bytes": PER_SHARD * IMAGE_BYTES, "crc32": 0}] * -(-num // PER_SHARD)
    about = {"samples": num, "rejected": 0, "bytes_in": num * IMAGE_BYTES, "columns": {}, "shards": shards}
    classes = [f"n{i:08d}" for i in range(NUM_CLASSES)]
    (folder / INDEX).write_text(json.dumps({"format": FORMAT, "classes": classes, **about}))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def first_batch(index: ShardIndex, encoded: list[bytes], shuffle: str, workers: int, step: int) -> tuple[float, float]:
    """Seconds from nothing to the first batch of epoch 1 from `step` on, and MiB that each worker has of its own."""
    options = loading(batch_size=BATCH, image_size=224, num_workers=workers, resize_on="device", shuffle=shuffle)

    def begin() -> object:
        loader = train_loader(index, options, RankInfo(device=torch.device("cpu")), MemoryStore(encoded, len(index)))
        loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
        loader.sampler.seek(1, step)
        batches = iter(loader)
        next(batches)
        return loader, batches

    seconds, (loader, _) = timed(begin)
    maps = [child.memory_maps() for child in psutil.Process().children()]
    own = [sum(m.private_clean + m.private_dirty for m in of if "/dev/shm" not in m.path) / 2**20 for of in maps]
    loader.close()
    return seconds, max(own, default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--samples", type=int, nargs="+", default=[1_281_167, 10_000_000, 100_000_000])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"{cpu_name()}, {usable_cpus()} CPUs; {versions()}\n")
    files = scan_split(options.images, ".")
    encoded = [Path(files.path(i)).read_bytes() for i in range(min(NUM_FILES, len(files)))]
    columns = "index, MB | open it, s | shuffle | order, s | order, MB | first batch, s | resume, s | worker, MiB"
    print(f"| samples | {columns} |\n{'|---' * 9}|")
    for num in options.samples:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "train")
            write_index(folder, num)
            megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
            open_seconds, index = timed(lambda folder=folder: load_index(folder))
            for shuffle, block_size in (("global", 1), ("block", 16)):
                order = TrainOrder(num_samples=num, batch_size=BATCH, seed=0, block_size=block_size)
                order_seconds, _ = timed(lambda order=order: order.sample_ids(0, 0))
                begin_seconds, _ = first_batch(index, encoded, shuffle, options.workers, 0)
                resume_seconds, own = first_batch(index, encoded, shuffle, options.workers, order.num_batches // 2)
                cells = f"{megabytes:.0f} | {open_seconds:.2f} | {shuffle} | {order_seconds:.2f}"
                cells += f" | {4 * num / block_size / 1e6:.1f} | {begin_seconds:.1f} | {resume_seconds:.1f} | {own:.0f}"
                print(f"| {num:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
