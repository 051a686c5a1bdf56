"""Hydrates the splits of a data set, and prints progress and the result."""

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.index.files import SplitFiles, files_of, status_of
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import duration, progress, size
from imagenet_opt.display.terminal_table import print_sentence
from imagenet_opt.hydrate.hydrate import Fetch, Tally, hydrate
from imagenet_opt.measure.storage.lustre import is_lustre

_LISTED = 100
"""Most lines about what could not be read that are printed."""


def hydrate_splits(data: DataSet, splits: Sequence[str], *, in_flight: int) -> Tally:
    """Read the files of the splits, on Lustre those whose data it does not hold, and print the result.

    Raises ImagenetOptError.
    """
    by_folder = {files.folder: files for files in (files_of(data.open(split)) for split in splits)}
    fetches = [Fetch(files, _missing(files)) for files in by_folder.values()]
    tally, num_left = Tally(), sum(int(fetch.left.sum()) for fetch in fetches)
    if not num_left:
        print("nothing to do: Lustre holds the data of all files")
        return tally
    began = time.perf_counter()
    try:
        with progress("hydrating", "files") as show:

            def on_progress(tally: Tally) -> None:
                show(tally.num_tried, num_left, tally.num_bytes)

            patience = data.loading.read_timeout / 2
            hydrate(fetches, tally, in_flight=in_flight, patience=patience, on_progress=on_progress)
    except KeyboardInterrupt:
        left = sum(int(fetch.left.sum()) for fetch in fetches)
        print(f"stopped with {left} file{'s' * (left != 1)} left; run the same command again", file=sys.stderr)
        raise
    bad = [f"{path}: {reason}" for path, reason in tally.bad.items()]
    print_tally(tally, bad, time.perf_counter() - began, in_flight, done="hydrated", unit="files")
    return tally


def _missing(files: SplitFiles) -> NDArray[np.bool_]:
    """Which files to fetch: on Lustre those without data; elsewhere all, since no other file system tells."""
    if not is_lustre(files.folder):
        return np.ones(files.num, bool)
    with progress("looking", "files") as show:
        missing = status_of(files, show).without_data
    print(
        printable(f"{files.folder}: Lustre does not hold the data of {missing.sum()} of {files.num} files"), flush=True
    )
    return missing


def print_tally(tally: Tally, bad: Iterable[str], seconds: float, in_flight: int, *, done: str, unit: str) -> None:
    """Print the lines `bad` about what could not be read, and the result. done, unit: what was done with what."""
    for line in islice(bad, _LISTED):
        print(printable(line))
    if len(tally.bad) > _LISTED:
        print(f"and {len(tally.bad) - _LISTED} more")
    print_sentence(
        f"{done} {tally.num_files} {unit}, {size(tally.num_bytes)}, in {duration(seconds)}: "
        f"{tally.num_files / seconds:.0f} {unit}/s, {tally.num_bytes / 1e6 / seconds:.1f} MB/s, {in_flight} in flight; "
        f"{f'{len(tally.bad)} could not be read (above)' if tally.bad else 'none failed'}"
    )
