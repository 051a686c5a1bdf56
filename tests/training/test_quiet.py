"""Console output and log lines of a run."""

import os

from imagenet_opt.training.quiet import Outliving


def test_a_closed_reader_raises_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as piped:
        stream = Outliving(piped)
        for _ in range(2):
            print("x" * 100_000, file=stream, flush=True)
