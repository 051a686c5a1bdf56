"""The readers of bytes from outside, each with the files of one good input, and what must hold of what it returns.

A reader returns, or raises an ImagenetOptError. It works in a folder of its own, which is as new for each input.
"""

import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.storage.cache_folder import open_cache
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.store import CachedStore, MemoryStore
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.source import read_compressed
from imagenet_opt.run.checkpoint import files as checkpoint
from imagenet_opt.run.loggers.csv_logger import MetricsCsv
from imagenet_opt.run.loggers.sent_rows import run_id
from imagenet_opt.run.numbers import read_rows
from imagenet_opt.sweep.results import print_results, write_csv
from imagenet_opt.sweep.rows import collect_rows

MAX_PIXELS = 2**18
"""The decoder's max_crop_pixels here, so that large images are common."""


@dataclass(frozen=True)
class Reader:
    """make: write one good input into a folder. read: what a run does with it. files: those that are damaged."""

    make: Callable[[Path], None]
    read: Callable[[Path], None]
    files: tuple[str, ...]


def draw_image(height: int = 70, width: int = 90, mode: str = "RGB") -> Image.Image:
    ramps = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)
    return Image.fromarray(np.stack([ramps % 256, ramps[::-1] % 256, ramps * 7 % 256], -1).astype(np.uint8)).convert(
        mode
    )


def drawn_images() -> Iterator[bytes]:
    """One of each kind that data sets are made of."""
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, str, dict[str, object]]] = [
        ("JPEG", "RGB", {}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "RGB", {"exif": exif, "subsampling": 0}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("PNG", "RGB", {}),
        ("PNG", "P", {}),
        ("PNG", "I;16", {}),
        ("WEBP", "RGB", {}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("PPM", "RGB", {}),
    ]
    for kind, mode, options in kinds:
        file = io.BytesIO()
        draw_image(mode=mode).save(file, kind, **options)
        yield file.getvalue()


def _images(folder: Path) -> None:
    (folder / "image").write_bytes(next(drawn_images()))


def _decode(folder: Path) -> None:
    encoded = (folder / "image").read_bytes()
    for turned in (False, True):
        decoder = Decoder(exif_rotation=turned, max_crop_pixels=MAX_PIXELS)
        image = decoder.open(encoded, "image")
        height, width = image.height, image.width
        for box in ((0, 0, height, width), (height // 3, width // 3, -(-height // 3), -(-width // 3))):
            pixels = decoder.crop(image, box)
            assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
            assert 0 < pixels.size // 3 <= min(MAX_PIXELS, 4 * box[2] * box[3]), "pixels of the crop"


def _classes(folder: Path) -> Path:
    for name in ("a/one.JPEG", "a/two.JPEG", "b/one.JPEG", "b/below/four.JPEG"):
        file = folder / "data/train" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        draw_image(20, 30).save(file)
    return folder / "data"


_INDEX = tuple(f"cached/{name}" for name in ("about.json", "labels.npy", "names.npy", "name_offsets.npy"))


def _index(folder: Path) -> None:
    data = _classes(folder.parent)  # stays in its place, because the index knows the folders' inodes and times
    time.sleep(2.1)  # a folder that has just changed is not cached
    open_index(data, "train", folder / "cache")
    shutil.copytree(next((folder / "cache/index").iterdir()), folder / "cached")


def _open_index(folder: Path) -> None:
    cache = next((folder / "cache/index").iterdir())
    shutil.copytree(folder / "cached", cache, dirs_exist_ok=True)
    _check(open_index(folder.parent / "data", "train", folder / "cache"), folder.parent / "data/train/")


def _check(split: Split, place: Path | str) -> None:
    """place: how the path of each sample begins."""
    assert 0 < len(split) < 10**6 and split.labels.shape == (len(split),)
    assert 0 <= split.labels.min() <= split.labels.max() < len(split.classes), "a label of no class"
    for i in range(len(split)):
        assert os.path.normpath(split.path(i)).startswith(str(place)), "a path outside of the data set"
    found = RecordStore(split).read_many(np.arange(len(split)))
    assert not len(split.sizes) or [len(encoded) for encoded in found] == split.sizes.tolist()


_SHARDS = ("labels", "shard_ids", "offsets", "sizes", "checksums", "names", "name_offsets")


def _shards(folder: Path) -> None:
    pack(_classes(folder), folder / "out", PackOptions(), val_folder="train")


def _read_shards(folder: Path) -> None:
    _check(open_shards(folder / "out/train"), folder / "out/train/shard-")


def _parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [next(drawn_images()), b"", b"abc"] * 20
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2] * 20}), folder / "train.parquet", compression="none")
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2] * 20}), folder / "val.parquet", row_group_size=20)


def _read_parquet(folder: Path) -> None:
    (cache := folder / "cache").mkdir(exist_ok=True)
    _check(open_index(folder, "train", cache), folder / "train.parquet: ")
    packed = open_index(folder, "val", cache, to_pack=True)
    assert len(list(read_compressed(packed))) == len(packed)


def _tars(folder: Path) -> None:
    (folder / "tars/train").mkdir(parents=True)
    with tarfile.open(folder / "tars/train/0.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for i, image in zip(range(6), drawn_images(), strict=False):
            for ending, content in (("cls", b"%d" % i), ("jpg", image), ("json", b'{"label": %d, "width": 9}' % i)):
                entry = tarfile.TarInfo(f"{'deep/' * 30 * (i % 2)}{i:03d}.{ending}")
                entry.size, entry.mtime = len(content), 1.5
                archive.addfile(entry, io.BytesIO(content))
    (folder / "tars/train/classnames.txt").write_text("\n".join("abcdef"))
    (folder / "tars/train/_info.json").write_text(
        '{"splits": {"train": {"filenames": ["0.tar"], "shard_lengths": [6]}}, "class_names": ["a", "b"]}'
    )


def _read_tars(folder: Path) -> None:
    _check(open_index(folder / "tars", "train", folder / "cache"), folder / "tars/train/0.tar: ")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))


def _checkpoint(folder: Path) -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    state = {
        "network": net.state_dict(),
        "network_config": {"name": "tiny", "num_classes": 4},
        "state_dict": {f"net.{name}": tensor for name, tensor in net.state_dict().items()},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [{"last_epoch": 1, "_last_lr": [0.1]}],
        "loops": {"fit_loop": {"epoch_progress": {"current": {"processed": 1}}}},
        "callbacks": {},
        "global_step": 7,
        "epoch": 0,
    }
    torch.save(state, folder / "last.ckpt")


def _read_checkpoint(folder: Path) -> None:
    checkpoint.find("auto", folder)
    path = checkpoint.find(str(folder / "last.ckpt"), folder)
    assert path is not None
    saved, net = checkpoint.read(path), network()
    checkpoint.check_network(saved, net, path)
    net.load_state_dict(saved["network"])
    assert isinstance(saved["global_step"], int), "no number of steps"


def _metrics(folder: Path) -> None:
    logger = MetricsCsv(folder=str(folder))
    for step in (9, 19, 29, 39):
        logger.log_metrics({"train/loss": 1 / step, "lr": 0.1, "epoch": step // 20}, step=step)


def _read_metrics(folder: Path) -> None:
    read_rows(folder / "metrics.csv")
    logger = MetricsCsv(folder=str(folder))
    logger.truncate_after(19)
    logger.log_metrics({"train/loss": 0.5}, step=29)
    logger.log_metrics({"train/loss": 0.5, "val/acc1": 0.5}, step=39)
    again = MetricsCsv(folder=str(folder))
    again.log_metrics({"train/loss": 0.5}, step=49)


def _wandb_id(folder: Path) -> None:
    run_id(folder, "wandb")


def _read_wandb_id(folder: Path) -> None:
    name = run_id(folder, "wandb")
    assert 0 < len(name) <= 128 and name.isprintable() and not set(name) & set("/\\#?%: "), "no name of a run"


def _sweep(folder: Path) -> None:
    (folder / "0").mkdir()
    (folder / "0/job.json").write_text(
        '{"job": 0, "overrides": ["a=1", "+b=x"], "status": "ok", "error": null, "seconds": 3.5, "exit_code": 0}\n'
    )
    numbers = '{"throughput/images_per_second": 310.5, "steps": 12, "val/acc1": 0.5}'
    (folder / "0/record.json").write_text(f'{{"numbers": {numbers}}}\n')


def _read_sweep(folder: Path) -> None:
    rows = collect_rows(folder)
    write_csv(rows, folder)
    print_results(rows, folder)


_CACHE = ("starts", "state", "checksums", "segments/00000")


def _cached(folder: Path) -> None:
    """Read all samples twice, so that the cache has them."""
    encoded = [bytes([i]) * 50 * i for i in range(20)]
    cache = open_cache(folder / "samples/f1", "s3://bucket", np.arange(0, 1000, 50), most_bytes=1e9)
    assert cache is not None, "no cache"
    store = CachedStore(MemoryStore(encoded, 20), cache)
    for _ in range(2):
        assert store.read_many(np.arange(20)) == encoded, "other bytes than those of the storage"


READERS = {
    "images": Reader(_images, _decode, ("image",)),
    "index cache": Reader(_index, _open_index, _INDEX),
    "shards": Reader(
        _shards,
        _read_shards,
        tuple(f"out/train/{name}" for name in ("index.json", "shard-00000.tar", *(f"{name}.npy" for name in _SHARDS))),
    ),
    "parquet": Reader(_parquet, _read_parquet, ("train.parquet", "val.parquet")),
    "tars": Reader(
        _tars, _read_tars, tuple(f"tars/train/{name}" for name in ("0.tar", "0.tar", "_info.json", "classnames.txt"))
    ),
    "sample cache": Reader(_cached, _cached, tuple(f"samples/f1/{name}" for name in _CACHE)),
    "checkpoint": Reader(_checkpoint, _read_checkpoint, ("last.ckpt",)),
    "metrics.csv": Reader(_metrics, _read_metrics, ("metrics.csv",)),
    "wandb_id.txt": Reader(_wandb_id, _read_wandb_id, ("wandb_id.txt",)),
    "sweep": Reader(_sweep, _read_sweep, ("0/job.json", "0/record.json")),
}
