"""The part of an image that the network sees, by the configuration or as other projects evaluate."""

from dataclasses import dataclass, replace

from imagenet_opt.data.options import Filter, LoaderOptions
from imagenet_opt.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class View:
    """image_size: pixels of a side. crop_ratio: side of the centred crop, as a share of the shorter side.
    interpolation: filter of the resize. tta: classify the mirror image too (test-time augmentation)."""

    image_size: int
    crop_ratio: float
    interpolation: Filter = "bilinear"
    tta: bool = False


CONVENTIONS = {
    "torchvision": View(224, 224 / 256),
    "torchvision_v2": View(224, 224 / 232),
    "timm": View(224, 0.95, "bicubic"),
    "ffcv": View(256, 0.875, "area", tta=True),
    "mosaic": View(224, 224 / 232),
    "nvidia": View(224, 224 / 256),
    "mlperf": View(224, 224 / 256),
    "fixres": View(384, 224 / 256),
}
"""Project -> its view."""


def view_of(loading: LoaderOptions, convention: str | None, *, tta: bool, val_flip: bool = False) -> View:
    """The view of a project in CONVENTIONS; None: the configured view, with the mirror image if `val_flip`.

    Raises ConfigError for an unknown project.
    """
    if convention is None:
        size = loading.val_image_size or loading.image_size
        return View(size, loading.val_crop_ratio, loading.val_interpolation or loading.interpolation, tta or val_flip)
    if convention not in CONVENTIONS:
        hint = did_you_mean(convention, CONVENTIONS, f"expected {', '.join(CONVENTIONS)}")
        raise ConfigError(f"eval={convention} is not known; {hint}")
    view = CONVENTIONS[convention]
    return replace(view, tta=view.tta or tta)
