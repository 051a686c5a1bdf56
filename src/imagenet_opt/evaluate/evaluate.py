"""Evaluates a network on the validation images."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from imagenet_opt.data.index.folder_index import Split
from imagenet_opt.data.loader import RankInfo, eval_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.evaluate.classes import logits_by_number, logits_of
from imagenet_opt.evaluate.network import Network
from imagenet_opt.evaluate.real_labels import RealAccuracy
from imagenet_opt.evaluate.result import Result, Sums
from imagenet_opt.evaluate.view import View


def evaluate(
    network: Network,
    val: Split,
    loading: LoaderOptions,
    view: View,
    *,
    real_labels: list[list[int]] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Evaluate on all images of `val`, on the GPU if there is one.

    With view.tta, the logits are the mean of those of an image and of its mirror image. Only logits of classes of `val`
    are used. real_labels: see read_real_labels. on_progress: called with (images done, images in all).

    Raises CheckpointMismatch if the network does not know the classes of `val`, DataError, and ConfigError
    for a network that takes images of another size only.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = replace(loading, batch_size=min(loading.batch_size, len(val)), max_bad_fraction=1.0)
    options = replace(
        options, val_image_size=view.image_size, val_crop_ratio=view.crop_ratio, val_interpolation=view.interpolation
    )
    logits_used = torch.tensor(logits_of(val.classes, network.classes, network.num_classes), device=device)
    sums, real = Sums(len(val.classes), device), _real_accuracy(real_labels, val, network, device)
    net, done = network.net.to(device), 0
    loader = eval_loader(val, options, RankInfo(device=device))
    try:
        for batch in loader:
            with torch.inference_mode():
                logits = _logits(net, batch.images, view)[:, logits_used]
                sums.add(logits, batch)
                if real is not None:
                    real.add(logits_used[logits.argmax(1)], batch)
            on_progress(done := min(done + len(batch.labels), len(val)), len(val))
    finally:
        loader.close()
    result = replace(sums.result(), num_logits=network.num_classes)
    if real is not None:
        share, num = real.result()
        result = replace(result, real_top1=share, real_images=num)
    return result


def _logits(net: nn.Module, images: Tensor, view: View) -> Tensor:
    """float32 (N, C). Raises ConfigError for a network that takes images of another size only."""
    try:
        logits: Tensor = net(images).float()
    except AssertionError as error:  # of timm
        raise ConfigError(
            f"the network does not take images of {view.image_size} pixels (data.val_image_size, eval=): "
            f"{first_line(error)}"
        ) from error
    return (logits + net(images.flip(-1)).float()) / 2 if view.tta else logits


def _real_accuracy(
    labels: list[list[int]] | None, val: Split, network: Network, device: torch.device
) -> RealAccuracy | None:
    if labels is None:
        return None
    paths = map(val.path, range(len(val)))
    return RealAccuracy(labels, paths, logits_by_number(network.classes, network.num_classes), device)
