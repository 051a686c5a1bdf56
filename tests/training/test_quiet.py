"""Console output and log lines of a run."""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from imagenet_opt.training.quiet import Outliving, quiet


def test_a_closed_reader_raises_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as piped:
        stream = Outliving(piped)
        for _ in range(2):
            print("x" * 100_000, file=stream, flush=True)


@contextmanager
def quieted(log_file: Path) -> Iterator[io.StringIO]:
    """A terminal, with logging to it and to a file as conf/hydra/default.yaml has it, after `quiet()`."""
    terminal = io.StringIO()
    console, file = logging.StreamHandler(terminal), logging.FileHandler(log_file, delay=True)
    console.setFormatter(logging.Formatter("%(message)s"))
    file.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    with pytest.MonkeyPatch.context() as patch, closing(file):
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, terminal)
        patch.setattr(logging, "raiseExceptions", True)
        patch.setattr(logging.getLogger(), "handlers", [console, file])
        patch.setattr(logging.getLogger(), "level", logging.INFO)
        for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
            patch.setattr(logging.getLogger(name), "handlers", [])
            patch.setattr(logging.getLogger(name), "propagate", True)
        patch.setattr(logging.getLogger("hydra.utils"), "level", logging.NOTSET)
        quiet()
        yield terminal


def test_the_file_gets_the_lines_that_the_bar_shows(tmp_path: Path) -> None:
    with quieted(tmp_path / "train.log") as terminal:
        logging.getLogger("callbacks").info("epoch 1/2  val  1.2 s", extra={"shown": True})
        logging.getLogger("callbacks").warning("not drawn")
    assert terminal.getvalue() == "not drawn\n"
    assert (tmp_path / "train.log").read_text().splitlines() == ["INFO epoch 1/2  val  1.2 s", "WARNING not drawn"]
