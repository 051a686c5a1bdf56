"""Hydrates the splits of a data set, with progress and a result in words."""

import sys
import time
from collections.abc import Sequence

from imagenet_opt.config.dataset import DataSet
from imagenet_opt.data.index.files import files_of, status_of
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import duration, progress, size
from imagenet_opt.errors import ConfigError
from imagenet_opt.hydrate.hydrate import Part, Tally, hydrate, probe
from imagenet_opt.hydrate.journal import Journal
from imagenet_opt.machine import mount_of
from imagenet_opt.measure.storage.lustre import is_lustre

_LISTED = 100
"""Bad files that are named."""


def hydrate_splits(data: DataSet, splits: Sequence[str], *, in_flight: int, verify: bool, again: bool) -> Tally:
    """Read all remaining files of the splits and print the result. verify, again: see the command's help. Raises
    ImagenetOptError."""
    by_folder = {files.folder: files for files in (files_of(data.open(split)) for split in splits)}
    for folder in by_folder:
        if verify and not is_lustre(folder):
            raise ConfigError(f"--verify needs Lustre; {mount_of(str(folder))} does not tell which files it holds")
    parts = [Part(files, Journal(data.cache / "hydrate", files)) for files in by_folder.values()]
    if again:
        for part in parts:
            part.journal.done[:] = 0
    tally = Tally()
    try:
        _read(parts, tally, in_flight, data.loading.read_timeout / 2)
        if verify:
            _verify(parts)
    except KeyboardInterrupt:
        left = sum(len(part.journal.left) for part in parts)
        print(
            f"stopped with {left} file{'s' * (left != 1)} left; run the same command again to resume", file=sys.stderr
        )
        raise
    return tally


def _read(parts: list[Part], tally: Tally, in_flight: int, patience: float) -> None:
    total, left = sum(part.files.num for part in parts), sum(len(part.journal.left) for part in parts)
    _tell_journal(parts, total, left)
    if not left:
        return
    began = time.perf_counter()
    estimate = probe(parts, tally, patience=patience)
    rest = left - tally.num_tried
    print(
        f"a first read takes {1e3 * estimate.latency_seconds:.1f} ms (median of {estimate.num_files} files, one at a "
        "time); "
        f"{rest} files with {in_flight} in flight: {duration(estimate.predict_seconds(rest, in_flight))} "
        "if the storage keeps pace",
        flush=True,
    )
    with progress("hydrating", "files") as show:
        hydrate(
            parts,
            tally,
            in_flight=in_flight,
            patience=patience,
            on_progress=lambda tally: show(tally.num_tried, left, tally.num_bytes),
        )
    _tell(tally, time.perf_counter() - began, in_flight)


def _tell_journal(parts: list[Part], total: int, left: int) -> None:
    for part in parts:
        if part.journal.outdated:
            print(printable(f"{part.files.folder} has different files now; starting a new journal"))
    if not left:
        print(f"nothing to do: earlier calls have read all {total} files (--again reads them again)")
    elif left < total:
        print(f"{total - left} of {total} files were done by earlier calls; {left} are left")


def _tell(tally: Tally, seconds: float, in_flight: int) -> None:
    for path, reason in list(tally.bad.items())[:_LISTED]:
        print(printable(f"{path}: {reason}"))
    if len(tally.bad) > _LISTED:
        print(f"and {len(tally.bad) - _LISTED} more")
    print(
        f"hydrated {tally.num_files} files, {size(tally.num_bytes)}, in {duration(seconds)}: "
        f"{tally.num_files / seconds:.0f} files/s, {tally.num_bytes / 1e6 / seconds:.1f} MB/s, {in_flight} in flight; "
        f"{f'{len(tally.bad)} could not be read (above)' if tally.bad else 'none failed'}"
    )


def _verify(parts: list[Part]) -> None:
    """Mark the files whose data Lustre has released as not read, and print their number."""
    for part in parts:
        with progress("verifying", "files") as show:
            released = status_of(part.files, show).released
        part.journal.done[released] = 0
        num = int(released.sum())
        remedy = "; the same command again brings them back" if num else ""
        print(
            printable(f"{part.files.folder}: Lustre does not hold the data of {num} of {part.files.num} files{remedy}")
        )
