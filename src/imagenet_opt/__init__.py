"""Train ResNet-50 on ImageNet at the speed of the GPU, not of the disk."""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from imagenet_opt.errors import printable

if TYPE_CHECKING:
    from imagenet_opt.data.plain_loader import loader

__all__ = ["__version__", "loader"]
__version__ = "0.3.0"

_make_record = logging.getLogRecordFactory()


def _make_printable_record(name: str, *arguments: Any, **more: Any) -> logging.LogRecord:
    """A log record; one of this package without control characters, because names of files come from outside."""
    record = _make_record(name, *arguments, **more)
    if str(name).partition(".")[0] == __name__:
        with suppress(TypeError, ValueError):  # logging itself reports arguments that do not match the message
            record.msg, record.args = printable(record.getMessage()), ()
    return record


logging.setLogRecordFactory(_make_printable_record)


def __getattr__(name: str) -> Any:
    """imagenet_opt.loader is imported at its first use, because it imports torch."""
    if name != "loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from imagenet_opt.data.plain_loader import loader

    return loader
