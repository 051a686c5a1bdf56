"""How index, order, first batch and resume grow with the number of samples: simulated packs of up to 100 million.

    python -m suites.benchmarks.scale --images FOLDER [--samples 1281167 10000000 100000000] [--workers 2]

The index is written to disk in the format of `imagenet-opt pack`, about 52 bytes a sample. Each read of a sample
returns the bytes of one of 256 files of FOLDER (class folders), so nothing is read from storage. The requests are those
that the store of a pack would make.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.index.shard_index import COLUMNS, FORMAT, INDEX, ShardIndex, ShardStore, load_index
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.data.order import TrainOrder
from imagenet_opt.data.storage.store import MemoryStore
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from tests.conftest import loading

NUM_FILES, NUM_CLASSES, PER_SHARD, IMAGE_BYTES, NAME_BYTES = 256, 1000, 2000, 110_000, 16
BATCH, NUM_COUNTED = 128, 200
COLUMNS_SHOWN = (
    *("samples", "index, MB", "open it, s", "open it, MiB", "shuffle", "order, s", "order, MB", "first batch, s"),
    *("resume, s", "worker, MiB", "files of the trainer", "files of a worker", "requests an image"),
)


class Start(NamedTuple):
    """Start of a loader. own_mib: most memory that a worker shares with no other process. files: descriptors that this
    process has more than before. worker_files: most descriptors that a worker has more than this process had before."""

    seconds: float
    own_mib: float
    files: int
    worker_files: int


def columns_of(num: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """The columns of an index, one at a time, because all together would need 50 bytes a sample and more."""
    places = np.arange(num)
    yield "labels", places % NUM_CLASSES
    yield "shard_ids", places // PER_SHARD
    yield "offsets", places % PER_SHARD * IMAGE_BYTES
    yield "name_offsets", np.arange(num + 1) * NAME_BYTES
    del places
    yield "sizes", np.full(num, IMAGE_BYTES)
    yield "checksums", np.zeros(num, np.uint32)
    yield "names", np.full(num * NAME_BYTES, ord("x"), np.uint8)


def write_index(folder: Path, num: int) -> None:
    """Columns and index.json of a pack of `num` samples, without its shards."""
    folder.mkdir()
    for name, values in columns_of(num):
        np.save(folder / f"{name}.npy", values.astype(COLUMNS[name], copy=False))
    shards = [{"bytes": PER_SHARD * IMAGE_BYTES, "crc32": 0}] * -(-num // PER_SHARD)
    about = {"samples": num, "rejected": 0, "bytes_in": num * IMAGE_BYTES, "columns": {}, "shards": shards}
    classes = [f"n{i:08d}" for i in range(NUM_CLASSES)]
    (folder / INDEX).write_text(json.dumps({"format": FORMAT, "classes": classes, **about}))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def peak_mib(function: Callable[[], Any]) -> tuple[float, Any]:
    """MiB that this process grows by at most during a call, mapped files included, and the result."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = psutil.Process().memory_info().rss
    result = function()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 2**10 - before / 2**20, result


def own_mib(process: psutil.Process) -> float:
    maps = [part for part in process.memory_maps() if "/dev/shm" not in part.path]
    return sum(part.private_clean + part.private_dirty for part in maps) / 2**20


def start(index: ShardIndex, encoded: list[bytes], shuffle: str, workers: int, step: int) -> Start:
    """From nothing to the first batch of epoch 1 from `step` on."""
    options = loading(batch_size=BATCH, image_size=224, num_workers=workers, resize_on="device", shuffle=shuffle)
    before = psutil.Process().num_fds()

    def begin() -> object:
        loader = train_loader(index, options, RankInfo(device=torch.device("cpu")), MemoryStore(encoded, len(index)))
        loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
        loader.sampler.seek(1, step)
        batches = iter(loader)
        next(batches)
        return loader, batches

    seconds, (loader, batches) = timed(begin)
    for _ in range(8 * workers):  # now every slot has held a batch
        next(batches)
    process = psutil.Process()
    children = process.children()
    started = Start(
        seconds,
        max(map(own_mib, children), default=0.0),
        process.num_fds() - before,
        max((child.num_fds() for child in children), default=before) - before,
    )
    loader.close()
    return started


def requests_per_image(index: ShardIndex, order: TrainOrder) -> float:
    """Requests that the store of a pack makes for some batches of an epoch, spread over it, over their images."""
    store = ShardStore(index)
    steps = np.linspace(0, order.num_batches - 1, NUM_COUNTED).astype(int).tolist()
    return sum(len(store.groups(order.sample_ids(0, step).indices)) for step in steps) / (NUM_COUNTED * BATCH)


def rows(num: int, encoded: list[bytes], workers: int) -> Iterator[tuple[object, ...]]:
    """A row of the table for each shuffle."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "train")
        write_index(folder, num)
        megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        open_mib, (open_seconds, index) = peak_mib(lambda: timed(lambda: load_index(folder)))
        for shuffle, block_size in (("global", 1), ("block", 16)):
            order = TrainOrder(num_samples=num, batch_size=BATCH, seed=0, block_size=block_size)
            order_seconds, _ = timed(partial(order.sample_ids, 0, 0))
            requests, order_mb = requests_per_image(index, order), 4 * num / block_size / 1e6
            middle = order.num_batches // 2
            del order  # a forked worker would inherit its shuffle
            first, resumed = (start(index, encoded, shuffle, workers, step) for step in (0, middle))
            opened = f"{num:,}", f"{megabytes:.0f}", f"{open_seconds:.2f}", f"{open_mib:.0f}"
            orders = f"{order_seconds:.2f}", f"{order_mb:.1f}", f"{first.seconds:.1f}", f"{resumed.seconds:.1f}"
            last = f"{resumed.own_mib:.0f}", resumed.files, resumed.worker_files, f"{requests:.3f}"
            yield *opened, shuffle, *orders, *last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--samples", type=int, nargs="+", default=[1_281_167, 10_000_000, 100_000_000])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"{cpu_name()}, {usable_cpus()} CPUs; {versions()}\n")
    files = scan_split(options.images, ".")
    encoded = [Path(files.path(i)).read_bytes() for i in range(min(NUM_FILES, len(files)))]
    print(f"| {' | '.join(COLUMNS_SHOWN)} |\n{'|---' * len(COLUMNS_SHOWN)}|")
    for num in options.samples:
        for row in rows(num, encoded, options.workers):
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
