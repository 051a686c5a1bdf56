"""Train ResNet-50 on ImageNet at the speed of the GPU, not of the disk."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from imagenet_opt.data.prefetcher import DevicePrefetcher

__version__ = "0.1.0"


def loader(
    root: "str | Path",
    *,
    split: str = "train",
    training: bool = True,
    device: "torch.device | str | None" = None,
    dtype: "torch.dtype | None" = None,
    rank: int = 0,
    world_size: int = 1,
    cache_dir: "str | None" = None,
    **options: Any,
) -> "DevicePrefetcher":
    """Batches on the device for a plain PyTorch loop, from `root`/`split`/<class>/*.JPEG or from packed shards.

    A batch has `images`, (N, 3, size, size) normalised and channels_last on a GPU, and `labels`, int64 (N,). Call
    `sampler.set_epoch(epoch)` before each epoch, and `close()` at the end.

    training: random crops in random order; False: centred crops of every image in order, where `valid` marks the images
    that are not padding. device: a GPU if there is one. dtype: of the images, torch.float32 by default. rank,
    world_size: this process and the number of processes, which share the images. cache_dir: of the index; the user's
    cache folder by default. options: fields of imagenet_opt.data.options.LoaderOptions, such as batch_size.

    Raises DataError for a folder without images, ConfigError for an option out of range.
    """
    from imagenet_opt.data.datamodule import folder_loader

    return folder_loader(
        root,
        split=split,
        training=training,
        device=device,
        dtype=dtype,
        rank=rank,
        world_size=world_size,
        cache_dir=cache_dir,
        **options,
    )
