"""Lightning's view of the data: loaders for the rank that asks."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.budget import fit_loader
from imagenet_opt.data.dataset import BatchDataset, CropPlan, eval_crops, train_crops
from imagenet_opt.data.demo import ensure_demo
from imagenet_opt.data.index import FileIndex, check_same_classes, open_split
from imagenet_opt.data.keys import BatchKeys
from imagenet_opt.data.normalize import Normalize
from imagenet_opt.data.order import EvalOrder, TrainOrder
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.store import FolderStore
from imagenet_opt.errors import CheckpointMismatch, ConfigError
from imagenet_opt.run.position import Position, position

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How samples become batches. Sizes in pixels; `batch_size` per process.

    num_workers: None for one a usable CPU. crop_scale: share of an image's area that a training crop may take.
    val_image_size: None for `image_size`. samples_per_epoch: None for the whole training set.
    """

    batch_size: int
    image_size: int
    num_workers: int | None
    prefetch_factor: int
    crop_scale: tuple[float, float]
    val_image_size: int | None
    val_crop_ratio: float
    samples_per_epoch: int | None
    seed: int

    def __post_init__(self) -> None:
        least = dict.fromkeys(("batch_size", "image_size", "prefetch_factor", "val_image_size", "samples_per_epoch"), 1)
        for name, low in (least | {"num_workers": 0}).items():
            value = getattr(self, name)
            if value is None and name in ("num_workers", "val_image_size", "samples_per_epoch"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(f"data.{name}={value} must be a whole number of at least {low}")
        if not _is_range(self.crop_scale):
            raise ConfigError(f"data.crop_scale={self.crop_scale} must be two shares of the area, such as [0.08, 1.0]")
        if not _is_range((self.val_crop_ratio, 1)):
            raise ConfigError(f"data.val_crop_ratio={self.val_crop_ratio} must be above 0 and at most 1")


class ImageData(LightningDataModule):
    """Training and validation loaders over two indexes with the same classes.

    Each rank loads its own part: Trainer(use_distributed_sampler=False).
    """

    def __init__(self, train: FileIndex, val: FileIndex, loading: Loading) -> None:
        super().__init__()
        check_same_classes(train, val)
        self.train, self.val, self.loading = train, val, loading
        self._start = Position(0, 0)

    @property
    def num_classes(self) -> int:
        return len(self.train.classes)

    def train_dataloader(self) -> DevicePrefetcher:
        how = self.loading
        order = TrainOrder(
            num_samples=len(self.train),
            batch_size=how.batch_size,
            seed=how.seed,
            samples_per_epoch=how.samples_per_epoch,
            **self._place(),
        )
        if order.num_dropped:
            log.info(f"data: {order.num_dropped} of {order.num_samples} images of each epoch fill no whole batch")
        crops = train_crops(seed=how.seed, scale=how.crop_scale)
        loader = self._loader(self.train, order, crops, how.image_size)
        loader.sampler.seek(*self._start)
        return loader

    def val_dataloader(self) -> DevicePrefetcher:
        how = self.loading
        order = EvalOrder(num_samples=len(self.val), batch_size=how.batch_size, **self._place())
        crops = eval_crops(crop_ratio=how.val_crop_ratio)
        return self._loader(self.val, order, crops, how.val_image_size or how.image_size)

    def state_dict(self) -> dict[str, int]:
        """Where training goes on. Lightning would ask the loader, but restores it only when no one asked for its
        length before, as every learning-rate schedule does."""
        return position(self._trainer())._asdict() | self._order_facts()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Raises CheckpointMismatch where the order of samples would not be the one that the run began with."""
        facts = self._order_facts()
        if changed := [
            f"{name} was {state_dict[name]}, is {now}" for name, now in facts.items() if state_dict[name] != now
        ]:
            raise CheckpointMismatch(
                f"the run cannot go on with other batches: {'; '.join(changed)}. Set seed, data.samples_per_epoch and "
                "data.batch_size x processes as they were, or start anew: resume_from=null and another hydra.run.dir"
            )
        self._start = Position(state_dict["epoch"], state_dict["step"])

    def _order_facts(self) -> dict[str, int]:
        """What the order of samples depends on, beside the place in the run."""
        return {
            "seed": self.loading.seed,
            "images of a global batch": self.loading.batch_size * self._trainer().world_size,
            "training images": len(self.train),
            "data.samples_per_epoch": self.loading.samples_per_epoch or 0,
        }

    def _loader(
        self, index: FileIndex, order: TrainOrder | EvalOrder, crops: CropPlan, image_size: int
    ) -> DevicePrefetcher:
        how = self.loading
        device = self._trainer().strategy.root_device
        budget = fit_loader(
            num_workers=how.num_workers,
            prefetch_factor=how.prefetch_factor,
            batch_bytes=how.batch_size * 3 * image_size**2,
            processes=int(os.environ.get("LOCAL_WORLD_SIZE", self._trainer().num_devices)),
        )
        if budget.message and index is self.train and self._trainer().is_global_zero:
            log.info(budget.message)
        keys = BatchKeys(num_batches=order.num_batches, image_size=image_size)
        loader: DataLoader[Batch] = DataLoader(
            BatchDataset(store=FolderStore(index), labels=index.labels, order=order, crop_plan=crops),
            batch_size=None,
            sampler=keys,
            num_workers=budget.num_workers,
            prefetch_factor=budget.prefetch_factor if budget.num_workers else None,
            persistent_workers=budget.num_workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # its own, so that starting workers draws nothing from the model's
        )
        return DevicePrefetcher(loader, keys, device=device, transform=Normalize(device))

    def _place(self) -> dict[str, int]:
        return {"rank": self._trainer().global_rank, "world_size": self._trainer().world_size}

    def _trainer(self) -> Any:
        if self.trainer is None:
            raise ConfigError("ImageData needs a Trainer: trainer.fit(model, datamodule=data)")
        return self.trainer


def folder_data(
    *, root: str | None, train_folder: str, val_folder: str, cache_dir: str | None, **loading: Any
) -> ImageData:
    """Data from `root`/`train_folder`/<class>/*.JPEG and `root`/`val_folder`/<class>/*.JPEG.

    loading: the fields of Loading. cache_dir: where the index is kept; None for the user's cache folder.
    """
    folder = Path(root) if root else None
    cache = cache_folder(cache_dir)
    indexes = [open_split(folder, split, cache) for split in (train_folder, val_folder)]
    return ImageData(indexes[0], indexes[1], Loading(**loading))


def demo_data(*, cache_dir: str | None, num_train: int, num_val: int, **loading: Any) -> ImageData:
    """Ten classes of drawn textures and shapes, made on first use in the cache folder."""
    cache = cache_folder(cache_dir)
    folder = ensure_demo(cache / f"demo-{num_train}-{num_val}", num_train=num_train, num_val=num_val)
    return ImageData(open_split(folder, "train", cache), open_split(folder, "val", cache), Loading(**loading))


def cache_folder(cache_dir: str | None) -> Path:
    """`cache_dir`, or imagenet_opt below $XDG_CACHE_HOME or ~/.cache."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "imagenet_opt"


def _is_range(limits: Any) -> bool:
    """Whether these are two numbers with 0 < low <= high <= 1."""
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        return False
    return all(isinstance(limit, int | float) for limit in limits) and 0 < limits[0] <= limits[1] <= 1
