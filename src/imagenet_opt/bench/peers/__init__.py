"""Other loaders that `imagenet-opt bench --against` measures, one short adapter each; none is needed to train.

An adapter is a function from a BenchJob to an iterable of uint8 batches (N, 3, size, size) or (N, size, size, 3),
random resized crops with flips, made on the CPU with the job's number of workers or threads.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple


class Peer(NamedTuple):
    """One loader.

    adapter: file and function. package: distribution whose version is reported. how: what is measured, in a line.
    needs: module that must be importable; "" if module and package have the same name.
    packs: whether the loader reads a copy in its own format, which `pack(job)` of its file writes to job.packed first.
    latency: whether our adapter opens the files, so that it can add data.added_latency_ms to each open.
    """

    adapter: str
    package: str
    how: str
    needs: str = ""
    install: str = 'pip install "imagenet-opt[bench]"'
    packs: bool = False
    latency: bool = False

    @property
    def installed(self) -> bool:
        try:
            return find_spec(self.needs or self.package) is not None
        except ModuleNotFoundError:
            return False

    @property
    def version(self) -> str:
        try:
            return version(self.package)
        except PackageNotFoundError:
            return "of unknown version"

    def function(self, name: str | None = None) -> Any:
        """The adapter, or another function of its file."""
        module, _, adapter = self.adapter.partition(":")
        return getattr(import_module(f"{__name__}.{module}"), name or adapter)


PEERS = {
    "torchvision": Peer(
        "torchvision:pillow",
        "torchvision",
        "as ImageFolder reads: Pillow, v1 transforms, PILToTensor, DataLoader",
        latency=True,
    ),
    "torchvision-v2": Peer(
        "torchvision:tensors", "torchvision", "decode_image, v2 transforms on uint8 tensors, DataLoader", latency=True
    ),
    "timm": Peer("timm:loader", "timm", "create_loader, its transform and fast_collate, prefetcher off", latency=True),
    "dali": Peer(
        "dali:loader",
        "nvidia-dali-cuda130",
        "CPU pipeline: readers.file, decoders.image_random_crop, resize, flip",
        needs="nvidia.dali",
    ),
    "ffcv": Peer(
        "ffcv:loader",
        "ffcv",
        "JPEGs re-encoded at quality 90 in a .beton, OS cache",
        install="apt install libopencv-dev libturbojpeg0-dev pkg-config g++, then pip install ffcv",
        packs=True,
    ),
    "litdata": Peer(
        "litdata:loader",
        "litdata",
        "StreamingDataset of the same JPEGs, its decoder, v2 transforms, StreamingDataLoader",
        packs=True,
    ),
    "webdataset": Peer(
        "webdataset:loader",
        "webdataset",
        "tar shards of the same JPEGs, decode_image, v2 transforms, WebLoader",
        packs=True,
    ),
    "spdl": Peer(
        "spdl:loader",
        "spdl",
        "threads of one process (PipelineBuilder), with torchvision's decode_image and v2 transforms, not spdl.io",
        needs="spdl.pipeline",
    ),
}
