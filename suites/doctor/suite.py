"""The doctor on runs with a known cause: `python -m suites.doctor.suite SAMPLE OUT --rounds 20`.

Each round examines every case once, each in its own process; one round takes about 25 minutes on two idle cores. Each
examination writes one JSON file to OUT; existing files are kept. At the end a table of all examinations is printed.
"""

import argparse
import gzip
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

import imagenet_opt.doctor.examination
import imagenet_opt.doctor.terminal_view  # noqa: F401  # slow imports, before each examination is forked
from imagenet_opt.cli.doctor import main as doctor
from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.measure.storage.page_cache import Extent, evicted
from suites.doctor.cases import CASES, Case, arranged, huge_folder
from suites.faults.flaky_folder import NotTried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="a folder with a folder of JPEGs for each class")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="NAME,... of cases")
    parser.add_argument("--budget", default="15s", help="of an examination, unless the case has a budget")
    parser.add_argument("--record", type=Path, help="write the measurements for tests/doctor/test_causes.py")
    options = parser.parse_args()
    for name, file in missing(options):
        began = time.monotonic()
        status = forked(CASES[name], options.sample.resolve(), file, CASES[name].budget or options.budget)
        cause = json.loads(file.read_text())["cause"] if file.exists() else f"status {status}"
        print(f"{file.stem}: {cause} ({time.monotonic() - began:.0f} s)", flush=True)
    print(table(options.out))
    if options.record is not None:
        record(options.out, options.record)


def missing(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Case and file of each run that OUT lacks, round by round. Makes the folder OUT."""
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in CASES if not options.only or name in options.only.split(",")]
    for number, name in itertools.product(range(options.rounds), names):
        file = out / f"{name.replace(' ', '_')}-{number:02}.json"
        if not file.exists():
            yield name, file


def forked(case: Case, sample: Path, file: Path, budget: str) -> int:
    """Exit status of an examination in a forked process."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(examine(case, sample, file, budget))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def examine(case: Case, sample: Path, file: Path, budget: str) -> int:
    with tempfile.TemporaryDirectory() as scratch, Path(file).with_suffix(".log").open("w") as log:
        try:
            evicted(Extent(str(image)) for folder in (sample, huge_folder(sample)) for image in folder.rglob("*.*"))
            with arranged(case, sample, Path(scratch)) as overrides:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                os.chdir(scratch)
                doctor([*overrides, f"data.cache_dir={scratch}/cache", "--budget", budget, "--json", str(file)])
        except NotTried as reason:
            print(reason)
            return 3
    return 0


_LEFT_OUT = {"machine", "versions", "config", "command", "date", "step_seconds", "host", "setup", "touches"}
"""Measurements that no rule of a cause reads, or of which it reads a part."""
_EVIDENCE = TypeAdapter(Evidence)
_HOST = ("installed_cpus", "cpu_limits", "free_shared_memory", "available_memory")


def record(out: Path, file: Path) -> None:
    """Write what the rules read in each examination, one JSON object per line, without texts of the machine."""
    rows = []
    for path in sorted(out.glob("*.json")):
        plain = json.loads(path.read_text())
        kept = {name: plain[name] for name in Evidence.__dataclass_fields__.keys() - _LEFT_OUT}
        kept["setup"] = plain["setup"] | {"cached_share_method": "", "profile": ""}
        kept["host"] = {name: plain["host"][name] for name in _HOST}
        kept["touches"] = plain["touches"] and plain["touches"] | {"evidence": ""}
        rows.append(json.dumps({"case": _case(path)} | kept))
    file.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


@dataclass
class Tally:
    """Counts over the runs of one case. levels: of confidence. efficiencies: measured / expected rate of each run.
    sentence: the last verdict."""

    causes: Counter[str] = field(default_factory=Counter)
    efficiencies: list[float] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)
    sentence: str = ""


def tallied(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Tally]:
    """Case -> verdicts of the present rules. runs: case, and content of the JSON file."""
    tallies = {name: Tally() for name in CASES}
    for name, plain in runs:
        diagnosis, tally = judge(_EVIDENCE.validate_python(plain)), tallies[name]
        tally.causes[diagnosis.cause] += 1
        tally.efficiencies.append(diagnosis.efficiency)
        tally.levels[diagnosis.confidence.level] += 1
        tally.sentence = diagnosis.sentence
    return tallies


def table(out: Path) -> str:
    """Markdown: case, expected and given verdicts, median of measured / expected rate, confidence, last sentence."""
    runs = ((_case(file), json.loads(file.read_text())) for file in sorted(out.glob("*.json")))
    headings = ("what was done", "expected", "named", "other verdicts", "measured / expected", "confidence", "verdict")
    rows = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, tally in tallied(runs).items():
        if not tally.causes:
            continue
        right = CASES[name].right
        wrong = Counter({cause: num for cause, num in tally.causes.items() if cause not in right})
        named = f"{tally.causes.total() - wrong.total()} of {tally.causes.total()}"
        counts = f"{_listed(wrong)} | {median(tally.efficiencies):.2f} | {_listed(tally.levels)}"
        rows.append(f"| {name} | {' or '.join(right)} | {named} | {counts} | {tally.sentence} |")
    return "\n".join(rows)


def _case(file: Path) -> str:
    return file.stem.rpartition("-")[0].replace("_", " ")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {num}" for name, num in counts.most_common()) or "none"


if __name__ == "__main__":
    main()
