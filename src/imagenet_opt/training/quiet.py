"""What a run says: its own words, without its libraries' chatter."""

import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning

from imagenet_opt.display.printable import make_printable

_LIGHTNING = str(Path(lightning.__file__).parent)
_KNOWN = (
    "You're resuming from a checkpoint that ended before the epoch ended",  # ours resumes: see data/datamodule.py
    ".*LeafSpec.* is deprecated",  # Lightning 2.6 with torch 2.15
    "The image decoding and encoding capabilities of TorchVision are deprecated",
    "It is recommended to use .*sync_dist=True",  # what is logged for the epoch is rank 0's own or already reduced
    "You defined a `validation_step` but have no `val_dataloader`",
    "The number of training batches .* is smaller than the logging interval",
)


class Outliving:
    """A stream that loses what nobody reads any more: Ctrl-C ends `tee` before `train.py | tee log` has saved."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._or_nowhere(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._or_nowhere(self._stream.flush)

    def _or_nowhere(self, do: Callable[[], Any]) -> None:
        try:
            do()
        except OSError:  # a full disk, a reader or a terminal that is gone: so Python's own flush at its end succeeds
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CurrentStdout:
    """A stream that writes to what sys.stdout is at that moment: a progress bar puts its own stream there."""

    def write(self, text: str) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


class NamedOnce(logging.Formatter):
    """Formats as `formatter` does, without the logger's name where the message begins with the name's last part."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        begin = f"{record.name.rpartition('.')[2]}: "
        return self._formatter.format(record).replace(f"{record.name}: {begin}", begin, 1)


def quiet() -> None:
    """Drop what Lightning tells of itself, warnings that are known to be of no use here, and control characters.

    A terminal or a disk of logs that is gone or full is no reason to end a run. What is logged does not tear a progress
    bar: handlers of the console write above the bar, and drop what the progress bar shows itself.
    """
    console = sys.stdout
    sys.stdout, sys.stderr = Outliving(sys.stdout), Outliving(sys.stderr)
    logging.raiseExceptions = False
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.levelno > logging.INFO or not record.pathname.startswith(_LIGHTNING))
        handler.addFilter(_name_origin)
        handler.addFilter(make_printable)
        if handler.formatter is not None:
            handler.setFormatter(NamedOnce(handler.formatter))
        if isinstance(handler, logging.StreamHandler) and handler.stream is console:
            handler.setStream(CurrentStdout())
            handler.addFilter(lambda record: not getattr(record, "shown", False))
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # what it tells it raises as well
    for message in _KNOWN:
        warnings.filterwarnings("ignore", message)


def _name_origin(record: logging.LogRecord) -> bool:
    """A filter for handlers of logging: what is said through Lightning is said by the module that calls it."""
    if record.name.startswith("lightning.") and not record.pathname.startswith(_LIGHTNING):
        record.name = record.module
    return True
