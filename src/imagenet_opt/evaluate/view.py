"""What the network sees of an image, by the configuration or as other projects evaluate."""

from dataclasses import dataclass, replace

from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import ConfigError, did_you_mean
from imagenet_opt.evaluate.network import Network


@dataclass(frozen=True)
class View:
    """What the network sees of an image: image_size: pixels of a side. crop_ratio: side of the centred crop, as a share
    of the shorter side. tta: whether the mirror image is classified too (test-time augmentation)."""

    image_size: int
    crop_ratio: float
    tta: bool = False


CONVENTIONS = {
    "torchvision": View(224, 224 / 256),
    "torchvision_v2": View(224, 224 / 232),
    "timm": View(224, 0.95),
    "ffcv": View(256, 0.875, tta=True),
    "mosaic": View(224, 224 / 232),
    "nvidia": View(224, 224 / 256),
    "mlperf": View(224, 224 / 256),
    "fixres": View(384, 224 / 256),
}
"""Name of a project -> how it evaluates. FFCV resizes by averaging areas, and many weights of timm by bicubic
interpolation; here all images are resized bilinearly."""


def view_of(network: Network, loading: LoaderOptions, convention: str | None, *, tta: bool) -> View:
    """The view of a convention, or the configured one. Raises ConfigError for an unknown convention."""
    if convention is None:
        size = loading.val_image_size or network.image_size
        return View(size, network.crop_ratio or loading.val_crop_ratio, tta)
    if convention not in CONVENTIONS:
        hint = did_you_mean(convention, CONVENTIONS, f"expected {', '.join(CONVENTIONS)}")
        raise ConfigError(f"eval={convention} is not known; {hint}")
    view = CONVENTIONS[convention]
    return replace(view, tta=view.tta or tta)
