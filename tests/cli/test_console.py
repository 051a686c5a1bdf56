"""What a run says."""

import os

from imagenet_opt.cli.console import Outliving


def test_a_reader_that_is_gone_ends_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as piped:
        stream = Outliving(piped)
        for _ in range(2):
            print("x" * 100_000, file=stream, flush=True)
