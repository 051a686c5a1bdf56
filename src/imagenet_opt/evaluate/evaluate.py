"""Evaluates a network on the validation images."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from imagenet_opt.data.index.folder_index import Split
from imagenet_opt.data.loader import RankInfo, eval_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.evaluate.classes import logits_of
from imagenet_opt.evaluate.network import DTYPES, FLOAT32, Network
from imagenet_opt.evaluate.result import Result, Sums
from imagenet_opt.evaluate.view import View
from imagenet_opt.model.saved_network import on_device


def evaluate(
    network: Network,
    val: Split,
    loading: LoaderOptions,
    view: View,
    *,
    precision: str = FLOAT32,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Evaluate on all images of `val`, on the GPU if there is one. Only the logits of the classes of `val` count.

    With view.tta, the logits are the mean for an image and its mirror image. precision: Lightning's. on_progress:
    called with (images done, images in all). Raises DataError, CheckpointMismatch if the network does not know the
    classes of `val`, ConfigError for another precision, or if the network takes only images of another size.
    """
    if precision not in DTYPES:
        raise ConfigError(f"trainer.precision={precision} cannot be evaluated; set one of {', '.join(DTYPES)}")
    dtype, autocast = DTYPES[precision]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = replace(
        loading,
        batch_size=min(loading.batch_size, len(val)),
        max_bad_fraction=1.0,
        val_image_size=view.image_size,
        val_crop_ratio=view.crop_ratio,
        val_interpolation=view.interpolation,
    )
    logits_used = torch.tensor(logits_of(val.classes, network.classes, network.num_classes), device=device)
    sums = Sums(len(val.classes), network.num_classes, device)
    net, done = on_device(network.net.to(dtype), device), 0
    loader = eval_loader(val, options, RankInfo(device=device))
    on_progress(0, len(val))
    try:
        for batch in loader:
            with torch.inference_mode():
                with torch.autocast(device.type, autocast, enabled=autocast is not None):
                    logits = _logits(net, batch.images.to(dtype), view)[:, logits_used]
                sums.add(logits, batch)
            on_progress(done := min(done + len(batch.labels), len(val)), len(val))
    finally:
        loader.close()
    return replace(sums.result(), precision=precision)


def _logits(net: nn.Module, images: Tensor, view: View) -> Tensor:
    """Logits, float32 (N, C). Raises ConfigError for a network that takes only images of another size."""
    try:
        logits: Tensor = net(images).float()
    except AssertionError as error:  # timm's check of the size
        raise ConfigError(
            f"the network does not take images of {view.image_size} pixels (data.val_image_size, eval=): "
            f"{first_line(error)} Leave eval= out, or set data.val_image_size to the size of the network"
        ) from error
    return (logits + net(images.flip(-1)).float()) / 2 if view.tta else logits
