"""`imagenet-opt hydrate`: reads every file of a lazy mount once, with hundreds of requests in flight."""

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagenet_opt.cli.arguments import Parser
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import duration, progress, size
from imagenet_opt.errors import ConfigError

if TYPE_CHECKING:
    from imagenet_opt.hydrate.hydrate import Part, Tally

HELP = """Read every file of a lazy mount once, with hundreds of requests in flight.

FSx for Lustre linked to S3, and mounts of S3 itself, list files that they do not hold yet. The first read of such a
file fetches it, which takes 0.1 to 1 s. A loader with 16 reads in flight spends its first epoch on this.

imagenet-opt hydrate data.root=/fsx/imagenet                     then train
imagenet-opt hydrate data.root=/fsx/imagenet --splits val --in-flight 512

  --in-flight N      number of files to request at a time, 1 to 900 (default 256)
  --splits A,B       train, val or both (default train,val)
  --verify           Lustre only: afterwards, count the files whose data Lustre does not hold, and mark them as not done
  --again            also read the files that earlier calls have read

Any override of train.py may be added, such as data.train_folder, data.val_folder, data.cache_dir or
data.read_timeout. For packed data, the shards are read. On Lustre with the program lfs, `lfs hsm_restore` fetches the
files without sending them to this machine. If that fails (it often needs root), and on other file systems, each file
is read completely and discarded.

The command first times a few files, one after another, and estimates the total time. Stopped by Ctrl-C, kill -9 or a
long storage outage? Run the same command again; it resumes from a journal in data.cache_dir, as long as the data set
has the same files. Files that cannot be read are listed at the end, and the next call tries them again; the exit
status is then 1.

Files may be released again: a file system that fills up, or that releases files after some time without a read, drops
their data, and the next read is slow again. On Lustre, --verify finds these files; on others, only --again helps. To
keep the files, copy or pack them onto a local disk: imagenet-opt pack --help."""

SPLITS = ("train", "val")
MOST_IN_FLIGHT = 900
"""Fits the usual limit of 1024 open files."""
_LISTED = 100
"""Bad files that are told by name."""


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    overrides: tuple[str, ...] = ()
    in_flight: int = 256
    splits: tuple[str, ...] = SPLITS
    verify: bool = False
    again: bool = False


def main(argv: list[str]) -> None:
    """Exit with status 1 if files could not be read."""
    if {"--help", "-h"} & set(argv):
        print(HELP)
        return
    if run(parse(argv)).bad:
        sys.exit(1)


def parse(argv: list[str]) -> Options:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("hydrate")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--in-flight", type=int, default=Options.in_flight)
    parser.add_argument("--splits", default=",".join(SPLITS))
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_intermixed_args(argv)
    if not 1 <= arguments.in_flight <= MOST_IN_FLIGHT:
        raise ConfigError(f"--in-flight {arguments.in_flight} must be from 1 to {MOST_IN_FLIGHT}")
    splits = tuple(dict.fromkeys(arguments.splits.split(",")))
    if not set(splits) <= set(SPLITS):
        raise ConfigError(f"--splits {arguments.splits} must be train, val or train,val")
    return Options(tuple(arguments.overrides), arguments.in_flight, splits, arguments.verify, arguments.again)


def run(options: Options) -> "Tally":
    """Read all remaining files and print the result. Raises ImagenetOptError."""
    from imagenet_opt.config.dataset import compose_data
    from imagenet_opt.data.index.files import files_of
    from imagenet_opt.hydrate.hydrate import Part, Tally
    from imagenet_opt.hydrate.journal import Journal
    from imagenet_opt.machine import mount_of
    from imagenet_opt.measure.storage.lustre import is_lustre

    data = compose_data(list(options.overrides))
    splits = [files_of(data.open(split)) for split in options.splits]
    files = list({split.folder: split for split in splits}.values())  # both may be the same folder
    for one in files:
        if options.verify and not is_lustre(one.folder):
            raise ConfigError(f"--verify needs Lustre; {mount_of(str(one.folder))} does not tell which files it holds")
    parts = [Part(one, Journal(data.cache / "hydrate", one)) for one in files]
    if options.again:
        for part in parts:
            part.journal.done[:] = 0
    tally = Tally()
    try:
        _touch(parts, tally, options.in_flight, data.loading.read_timeout / 2)
        if options.verify:
            _verify(parts)
    except KeyboardInterrupt:
        left = sum(len(part.journal.left) for part in parts)
        print(
            f"stopped with {left} file{'s' * (left != 1)} left; run the same command again to resume", file=sys.stderr
        )
        raise
    return tally


def _touch(parts: "list[Part]", tally: "Tally", in_flight: int, patience: float) -> None:
    from imagenet_opt.hydrate.hydrate import hydrate, probe

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


def _tell_journal(parts: "list[Part]", total: int, left: int) -> None:
    for part in parts:
        if part.journal.outdated:
            print(printable(f"{part.files.folder} has different files now; starting a new journal"))
    if not left:
        print(f"nothing to do: earlier calls have touched all {total} files (--again touches them again)")
    elif left < total:
        print(f"{total - left} of {total} files were done by earlier calls; {left} are left")


def _tell(tally: "Tally", seconds: float, in_flight: int) -> None:
    for path, reason in list(tally.bad.items())[:_LISTED]:
        print(printable(f"{path}: {reason}"))
    if len(tally.bad) > _LISTED:
        print(f"and {len(tally.bad) - _LISTED} more")
    print(
        f"hydrated {tally.num_files} files, {size(tally.num_bytes)}, in {duration(seconds)}: "
        f"{tally.num_files / seconds:.0f} files/s, {tally.num_bytes / 1e6 / seconds:.1f} MB/s, {in_flight} in flight; "
        f"{f'{len(tally.bad)} could not be read (above)' if tally.bad else 'none failed'}"
    )


def _verify(parts: "list[Part]") -> None:
    """Mark the files whose data Lustre has released as not read, and print their number."""
    from imagenet_opt.data.index.files import status_of

    for part in parts:
        with progress("verifying", "files") as show:
            released = status_of(part.files, show).released
        part.journal.done[released] = 0
        num = int(released.sum())
        remedy = "; the same command again brings them back" if num else ""
        print(
            printable(f"{part.files.folder}: Lustre does not hold the data of {num} of {part.files.num} files{remedy}")
        )
