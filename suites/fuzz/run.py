"""Fuzz all readers of bytes from outside: `python -m suites.fuzz.run --minutes 10 --images FOLDER`.

Prints a table, and what was undocumented, of which --keep FOLDER keeps one input each. Ends with 1 if there was any.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from suites.fuzz.judge import Judge
from suites.fuzz.mutations import mutated, repacked
from suites.fuzz.readers import READERS, drawn_images

MOST_BYTES = 2**18
ROUND = 100


def inputs(judge: Judge, reader: str, images: list[bytes]) -> st.SearchStrategy[tuple[str, bytes]]:
    """(file, its damaged content)."""
    if reader == "images":
        return st.tuples(st.just("image"), st.sampled_from(images).flatmap(mutated))
    files = READERS[reader].files
    parts = [st.tuples(st.just(file), mutated(judge.good(reader, file))) for file in files]
    if reader == "checkpoint":
        parts += [st.tuples(st.just(file), repacked(judge.good(reader, file))) for file in files for _ in range(2)]
    return st.one_of(parts)


def fuzz(judge: Judge, reader: str, images: list[bytes], examples: int, number: int) -> None:
    """So many inputs, the same for the same number."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(judge, reader, images))
    def attempt(case: tuple[str, bytes]) -> None:
        judge.try_input(reader, *case)

    attempt()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--readers", default=",".join(READERS))
    arguments = parser.parse_args()
    images = [*drawn_images(), *_files(arguments.images)]
    names = arguments.readers.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        judge = Judge(Path(scratch), names)
        end, number = time.monotonic() + 60 * arguments.minutes, 0
        while time.monotonic() < end:
            for name in names:
                fuzz(judge, name, images, ROUND, number)
            number += 1
        judge.close()
    sys.exit(report(judge, arguments.keep))


def _files(folder: Path | None) -> list[bytes]:
    """Real images, small ones, since a mutated file is copied many times."""
    if folder is None:
        return []
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < MOST_BYTES)
    return [path.read_bytes() for path in files[:: max(1, len(files) // 100)]]


def report(judge: Judge, keep: Path | None) -> int:
    kinds = ("value", "error", "undocumented")
    print(f"{'reader':14}{'inputs':>10}{'values':>10}{'errors':>10}{'undocumented':>14}")
    for name, found in judge.counts.items():
        counts = [found[kind] for kind in kinds]
        print(f"{name:14}{sum(counts):>10}{counts[0]:>10}{counts[1]:>10}{counts[2]:>14}")
    for i, ((name, what), (file, content)) in enumerate(judge.undocumented.items()):
        print(f"{name}: {file}: {what}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{i}-{name}-{Path(file).name}").write_bytes(content)
    return int(bool(judge.undocumented))


if __name__ == "__main__":
    main()
