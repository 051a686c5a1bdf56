"""Does to real runs what happens to real runs, and compares how they end with a run that nothing happened to.

    python -m suites.faults.suite [--tries N] [--kills 50] [--only NAME,...] [--workdir DIR] [--markdown FILE]

Ends with status 1 if a case failed; its output stays in the workdir. What a machine does not allow is not tried:
full disks need the right to mount, faults of single reads need FUSE (/dev/fuse, libfuse, pip install mfusepy).
"""

import argparse
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from imagenet_opt.display.table import Column, Table
from suites.faults import checkpoint_cases, process_cases, storage_cases, training_cases  # noqa: F401
from suites.faults.flaky_folder import NotTried
from suites.faults.runs import CASES, Case, Lab, Trial


@dataclass
class Row:
    """What came of all tries of a case."""

    title: str
    tries: int = 0
    survived: int = 0
    lost_steps: int = 0
    recover_seconds: list[float] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        survived = f"{self.survived} of {self.tries}" if self.tries else "not tried"
        seconds = f"{median(self.recover_seconds):.0f}" if self.recover_seconds else ""
        lost = f"{self.lost_steps}" if self.recover_seconds else ""
        return self.title, f"{self.tries}", survived, lost, seconds, "; ".join(dict.fromkeys(self.endings))


HEADINGS = ("fault", "tries", "survived or explained", "lost steps, at most", "seconds to recover", "how it ends")


def attempt(lab: Lab, name: str, case: Case, number: int, kills: int, row: Row) -> None:
    """One try, added to `row`."""
    trial = Trial(lab, name, number, kills)
    began = time.monotonic()
    try:
        ending = case.attempt(trial)
        row.survived += 1
    except NotTried as reason:
        ending = f"not tried: {reason}"
        row.tries -= 1
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ending = f"FAILED: {error or type(error).__name__} ({Path(place.filename).name}:{place.lineno})"
        for run in trial.starts[-1:]:
            ending_lines = run.output.splitlines()[-12:]
            print("\n".join(f"    | {line[:200]}" for line in ending_lines), f"    ^ {run.out.parent}", sep="\n")
    finally:
        trial.clear_up()
    row.tries += 1
    row.endings.append(ending)
    row.lost_steps = max(row.lost_steps, trial.lost_steps)
    row.recover_seconds += trial.recover_seconds
    print(f"{case.title}: {ending} [{time.monotonic() - began:.0f} s]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m suites.faults.suite", description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=1, help="of each case, at other moments")
    parser.add_argument("--kills", type=int, default=50, help="of the run that is killed at random moments")
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--workdir", type=Path, help="where the runs are; default: a new folder")
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its runs and mounts are ended, too
    lab = Lab(options.workdir or Path(tempfile.mkdtemp(prefix="faults_")))
    rows = [Row(CASES[name].title) for name in names]
    try:
        for row, name in zip(rows, names, strict=True):
            for number in range(options.tries):
                attempt(lab, name, CASES[name], number, options.kills, row)
    finally:
        lab.clear_up()
    table = Table("Faults", tuple(map(Column, HEADINGS)), tuple(row.cells() for row in rows)).markdown()
    print("", table, sep="\n")
    if options.markdown:
        options.markdown.write_text(table)
    sys.exit(any(row.survived < row.tries for row in rows))


if __name__ == "__main__":
    main()
