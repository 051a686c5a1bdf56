"""Train ResNet-50 on ImageNet at the speed of the GPU, not of the disk."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagenet_opt.data.plain_loader import loader

__all__ = ["__version__", "loader"]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """imagenet_opt.loader is imported at its first use, because it imports torch."""
    if name != "loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from imagenet_opt.data.plain_loader import loader

    return loader
