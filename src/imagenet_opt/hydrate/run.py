"""Hydrates the splits of a data set, and prints progress and the result."""

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median

from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.index.files import files_of, status_of
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import duration, progress, size
from imagenet_opt.display.terminal_table import print_sentence
from imagenet_opt.errors import ConfigError
from imagenet_opt.hydrate.hydrate import Tally, hydrate, probe
from imagenet_opt.hydrate.journal import Journal
from imagenet_opt.machine import mount_of
from imagenet_opt.measure.storage.lustre import is_lustre

_LISTED = 100
"""Most lines about what could not be read that are printed."""


def hydrate_splits(data: DataSet, splits: Sequence[str], *, in_flight: int, verify: bool, again: bool) -> Tally:
    """Read all remaining files of the splits and print the result. verify, again: options of the command.

    Raises ImagenetOptError.
    """
    by_folder = {files.folder: files for files in (files_of(data.open(split)) for split in splits)}
    for folder in by_folder:
        if verify and not is_lustre(folder):
            raise ConfigError(
                f"--verify needs Lustre; {mount_of(str(folder))} cannot report which files have their data"
            )
    journals = [Journal(data.cache / "hydrate", files) for files in by_folder.values()]
    for journal in journals:
        if journal.outdated:
            print(printable(f"{journal.files.folder} has different files now; starting a new journal"))
        if again:
            journal.done[:] = 0
    tally = Tally()
    try:
        _read(journals, tally, in_flight, data.loading.read_timeout / 2)
        if verify:
            _verify(journals)
    except KeyboardInterrupt:
        left = sum(len(journal.left) for journal in journals)
        print(
            f"stopped with {left} file{'s' * (left != 1)} left; run the same command again to resume", file=sys.stderr
        )
        raise
    return tally


def _read(journals: list[Journal], tally: Tally, in_flight: int, patience: float) -> None:
    total, left = sum(journal.files.num for journal in journals), sum(len(journal.left) for journal in journals)
    if not left:
        print(f"nothing to do: earlier calls have read all {total} files (--again reads them again)")
        return
    if left < total:
        print(f"{total - left} of {total} files were done by earlier calls; {left} are left")
    began = time.perf_counter()
    first_reads = probe(journals, tally, patience=patience)
    rest = left - tally.num_tried
    expected_seconds = rest * median(first_reads) / min(in_flight, max(1, rest))
    print_sentence(
        f"a first read takes {1e3 * median(first_reads):.1f} ms (median of {len(first_reads)} files, one at a time); "
        f"{rest} files with {in_flight} in flight: {duration(expected_seconds)} if the storage keeps pace"
    )
    with progress("hydrating", "files") as show:

        def on_progress(tally: Tally) -> None:
            show(tally.num_tried, left, tally.num_bytes)

        hydrate(journals, tally, in_flight=in_flight, patience=patience, on_progress=on_progress)
    bad = [f"{path}: {reason}" for path, reason in tally.bad.items()]
    print_tally(tally, bad, time.perf_counter() - began, in_flight, done="hydrated", unit="files")


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


def _verify(journals: list[Journal]) -> None:
    """Mark the files whose data Lustre has released as not read, and print their number."""
    for journal in journals:
        with progress("verifying", "files") as show:
            released = status_of(journal.files, show).released
        journal.done[released] = 0
        missing = f"{released.sum()} of {journal.files.num} files"
        remedy = "; run the same command again to fetch them" if released.any() else ""
        print(printable(f"{journal.files.folder}: Lustre does not hold the data of {missing}{remedy}"))
