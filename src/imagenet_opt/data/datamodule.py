"""The loaders of each rank, as a LightningDataModule."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from lightning.pytorch import LightningDataModule, Trainer
from pydantic import Field

from imagenet_opt import machine
from imagenet_opt.data.demo import DEMO_CLASSES, demo_folder
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.index.layout import root_of
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, with_classes_of
from imagenet_opt.data.loader import RankInfo, eval_loader, image_dtype, train_loader, train_order
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import STEPS, check_fingerprint, fingerprint, limited
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.storage.store import Store
from imagenet_opt.errors import ConfigError
from imagenet_opt.processes import start_server
from imagenet_opt.run.checkpoint.position import Position, position
from imagenet_opt.run.hooks import ResizesImages, callbacks_of

OneOfEachClass = Annotated[int, Field(ge=len(DEMO_CLASSES))]
DEMO_OPTIONS = LoaderOptions(batch_size=50, image_size=48, crop_scale=(0.35, 1.0))
"""Defaults for the small images of the demo."""


class ImageData(LightningDataModule):
    """Training and validation loaders over two indexes; val may lack classes of train.

    Each rank loads its own part, so use Trainer(use_distributed_sampler=False). store: provides the bytes of training
    samples; None: the store of the index.
    """

    def __init__(self, train: Split, val: Split, loading: LoaderOptions, store: Store | None = None) -> None:
        super().__init__()
        self.train, self.val, self.loading, self.store = train, with_classes_of(train, val), loading, store
        self._start = Position(0, 0)
        self._loaders: list[DevicePrefetcher] = []

    @property
    def num_classes(self) -> int:
        return len(self.train.classes)

    def train_dataloader(self) -> DevicePrefetcher:
        # A callback may enlarge the images; workers and memory are planned for the largest size.
        callbacks = callbacks_of(self._trainer())
        sizes = [callback.largest_size for callback in callbacks if isinstance(callback, ResizesImages)]
        size = max(sizes, default=self.loading.image_size)
        loader = train_loader(self.train, self.loading, self._rank_info(), self.store, largest_size=size)
        loader.sampler.seek(*self._start)
        return self._keep(loader)

    def val_dataloader(self) -> DevicePrefetcher:
        limit = self._trainer().limit_val_batches
        is_limited = isinstance(limit, int) or limit < 1  # the first images of the index are those of the first classes
        return self._keep(eval_loader(self.val, self.loading, self._rank_info(), spread=is_limited))

    def teardown(self, stage: str) -> None:
        self._start = Position(0, 0)  # the next fit starts at the beginning, unless it resumes from a checkpoint
        while self._loaders:
            self._loaders.pop().close()

    def on_exception(self, exception: BaseException) -> None:
        """End the workers after a failed fit; Lightning does not call `teardown` then."""
        self.teardown("fit")

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: the state of the training loader with the trainer's position.

        Lightning saves the state of the loader too, but does not restore it once a learning-rate schedule has read the
        length of the loader.
        """
        return position(self._trainer())._asdict() | self._fingerprint(self._trainer())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position. Raises CheckpointMismatch, see `check_order`."""
        self.check_order(state_dict, self._trainer())
        self._start = Position(state_dict["epoch"], state_dict["step"])

    def check_order(self, saved: Mapping[str, Any], trainer: Trainer) -> None:
        """Raise CheckpointMismatch if the order of samples would change. saved: result of `state_dict`."""
        new_run = "start a new run: resume_from=null and another hydra.run.dir"
        check_fingerprint(saved, self._fingerprint(trainer), otherwise=new_run)

    def identity(self) -> dict[str, int]:
        """Facts that must be equal in all processes of a run: the data and the order of samples."""
        return self._fingerprint(self._trainer()) | {"validation images": len(self.val)}

    def _keep(self, loader: DevicePrefetcher) -> DevicePrefetcher:
        """Register a loader, so that its workers end with the run."""
        self._loaders.append(loader)
        return loader

    def _fingerprint(self, trainer: Trainer) -> dict[str, int]:
        order = train_order(len(self.train), self.loading, world_size=trainer.world_size)
        steps = int(limited(order.num_batches, trainer.limit_train_batches))
        return fingerprint(order, self.train.labels, self.train.classes) | {STEPS: steps}

    def _rank_info(self) -> RankInfo:
        trainer, device = self._trainer(), self._trainer().strategy.root_device
        local = int(os.environ.get("LOCAL_WORLD_SIZE", trainer.num_devices))
        return RankInfo(
            device=device,
            dtype=image_dtype(trainer.precision, device),
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            local_processes=local,
            sharing_cpus=machine.sharing_cpus(local_processes=local, world_size=trainer.world_size),
        )

    def _trainer(self) -> Any:
        if self.trainer is None:
            raise ConfigError("ImageData needs a Trainer: trainer.fit(model, datamodule=data)")
        return self.trainer


def folder_data(
    *,
    root: str | None = None,
    train_folder: str = "train",
    val_folder: str = "val",
    cache_dir: str | None = None,
    **loading: Any,
) -> ImageData:
    """Data from `root`/`train_folder`/<class>/*.JPEG and `root`/`val_folder`/<class>/*.JPEG, or from packed folders.
    `root` is a folder, or a URL such as s3://bucket/imagenet.

    loading: fields of LoaderOptions. cache_dir: folder for the index; None: the user's cache folder.
    """
    place, cache = root_of(root), cache_folder(cache_dir)
    if isinstance(place, str):
        start_server()  # imports torch while the splits are listed
    options = LoaderOptions(**loading)
    train, val = (open_index(place, split, cache, cache_gb=options.cache_gb) for split in (train_folder, val_folder))
    return ImageData(train, val, options)


def demo_data(
    *, cache_dir: str | None = None, num_train: OneOfEachClass = 2000, num_val: OneOfEachClass = 400, **loading: Any
) -> ImageData:
    """Ten classes of drawn textures and shapes, drawn on first use into the cache folder.

    loading: fields of LoaderOptions; DEMO_OPTIONS has the defaults.
    """
    cache = cache_folder(cache_dir)
    folder = demo_folder(cache, num_train, num_val)
    options = replace(DEMO_OPTIONS, **loading)
    return ImageData(open_index(folder, "train", cache), open_index(folder, "val", cache), options)
