"""Console output of a run: hides useless messages of libraries and survives a closed terminal."""

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
    ".*LeafSpec.* is deprecated",  # Lightning 2.6 with torch 2.15
    "It is recommended to use .*sync_dist=True",  # epoch metrics are rank 0's own or already reduced
    "You defined a `validation_step` but have no `val_dataloader`",
    "Be aware that when using `ckpt_path`, callbacks used to create",  # training/recipe.py compares them
    "The number of training batches .* is smaller than the logging interval",
)


class Outliving:
    """A stream that drops its output after its reader has ended: in `train.py | tee log`, Ctrl-C ends `tee` first."""

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
        except OSError:  # full disk, or no reader; with devnull, Python's own flush at exit succeeds
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CurrentStdout:
    """A stream that looks up sys.stdout at every write, since a progress bar replaces sys.stdout."""

    def write(self, text: str) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


def quiet() -> None:
    """Drop Lightning's messages about itself, and warnings that do not apply here; escape control characters.

    A closed terminal or a full disk does not end the run. Console handlers write above the progress bar, and drop
    records whose text the bar shows.
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
        handler.addFilter(make_printable)
        if isinstance(handler, logging.StreamHandler) and handler.stream is console:
            handler.setStream(CurrentStdout())
            handler.addFilter(lambda record: not getattr(record, "shown", False))
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # Hydra also raises the errors that it logs
    for message in _KNOWN:
        warnings.filterwarnings("ignore", message)
