"""Train ResNet-50 on ImageNet at the speed of the GPU, not of the disk."""

import logging
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from imagenet_opt.errors import printable

if TYPE_CHECKING:
    from imagenet_opt.data.plain_loader import loader
    from imagenet_opt.diagnosis.loop import diagnose
    from imagenet_opt.diagnosis.tune import tune

__all__ = ["__version__", "diagnose", "loader", "tune"]
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


_LAZY = {"diagnose": "diagnosis.loop", "loader": "data.plain_loader", "tune": "diagnosis.tune"}


def __getattr__(name: str) -> Any:
    """These functions are imported at their first use, because they import torch."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
