"""The doctor on runs whose trouble is known: `python -m suites.doctor.suite SAMPLE OUT --rounds 20`.

Each round examines every case once, in a process of its own; one round takes about 25 minutes on two quiet cores. OUT
gets one JSON file for each examination; examinations that are there already are not made again. At the end a table of
all is printed.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_opt.measure.storage.page_cache import Extent, evicted
from suites.doctor.cases import CASES, Case, arranged
from suites.doctor.huge_images import huge_folder
from suites.faults.not_tried import NotTried

_LIMIT_SECONDS = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="a folder with a folder of JPEGs for each class")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", default="15s", help="of an examination, unless its case has one")
    parser.add_argument("--only", default="", help="NAME,... of cases")
    parser.add_argument("--record", type=Path, help="write what was measured for tests/doctor/test_recorded.py")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    preload()
    names = [name for name in CASES if not options.only or name in options.only.split(",")]
    for number in range(options.rounds):
        for name in names:
            file = options.out / f"{name.replace(' ', '_')}-{number:02}.json"
            if not file.exists():
                began = time.monotonic()
                budget = CASES[name].budget or options.budget
                status = forked(CASES[name], options.sample.resolve(), file.resolve(), budget)
                cause = json.loads(file.read_text())["cause"] if file.exists() else f"status {status}"
                print(f"{number} {name}: {cause} ({time.monotonic() - began:.0f} s)", flush=True)
    print(table(options.out))
    if options.record is not None:
        record(options.out, options.record)


def preload() -> None:
    """What takes seconds to import; each examination is forked from here."""
    import imagenet_opt.doctor.apply
    import imagenet_opt.doctor.examination
    import imagenet_opt.doctor.terminal_view  # noqa: F401


def forked(case: Case, sample: Path, file: Path, budget: str) -> int:
    """Exit status of an examination in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(examine(case, sample, file, budget))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def examine(case: Case, sample: Path, file: Path, budget: str) -> int:
    from imagenet_opt.cli.doctor import main as doctor

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


_KEPT = ("batch_size", "simulated", "ceilings", "phases", "facts", "curves", "expected", "measured", "waterfall")
_TEXTS = ("storage_bound", "reads_in_flight", "resize_on", "cpu_limit", "waits_places", "not_measured")
"""The facts among the kept that are no numbers."""


def record(out: Path, file: Path) -> None:
    """What the rules look at, of all examinations, for the tests of the rules: a JSON object a line."""
    rows = []
    for one in sorted(out.glob("*.json")):
        found = json.loads(one.read_text())
        facts = {name: fact for name, fact in found["facts"].items() if not isinstance(fact, str) or name in _TEXTS}
        fresh = {"verdict": "", "cause": "", "next_stage": None, "next_gain": None, "findings": [], "facts": facts}
        kept = {name: found[name] for name in _KEPT}
        rows.append(json.dumps({"case": _case(one)} | kept | fresh))
    file.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


@dataclass
class Tally:
    """Of the runs of one case: how often each cause was named, each other rule than the right one fired, and each
    level of confidence came out. sentence: the last verdict."""

    causes: Counter[str] = field(default_factory=Counter)
    also: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    sentence: str = ""


def tallied(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Tally]:
    """By case, by the rules as they are now. runs: case, and what was measured then."""
    from imagenet_opt.doctor.confidence import confidence
    from imagenet_opt.doctor.diagnosis_file import diagnosis_of
    from imagenet_opt.doctor.evidence import evidence_of
    from imagenet_opt.doctor.verdict import conclude

    found = {name: Tally() for name in CASES}
    for name, plain in runs:
        judged = conclude(evidence_of(diagnosis_of(plain)))
        fired = {finding.rule for finding in judged.findings if finding.fired and not finding.environment}
        found[name].causes[judged.cause] += 1
        found[name].also.update(fired - set(CASES[name].right))
        found[name].levels[confidence(judged).level] += 1
        found[name].sentence = judged.sentence
    return found


def table(out: Path) -> str:
    """Markdown: what was done, what must be said, what was, how surely, and which rules fired beside it."""
    runs = ((_case(file), json.loads(file.read_text())) for file in sorted(out.glob("*.json")))
    headings = ("what was done", "expected", "named", "other verdicts", "also fired", "confidence", "verdict")
    rows = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, tally in tallied(runs).items():
        if not tally.causes:
            continue
        right = CASES[name].right
        wrong = Counter({cause: num for cause, num in tally.causes.items() if cause not in right})
        named = f"{tally.causes.total() - wrong.total()} of {tally.causes.total()}"
        seen = f"{_listed(wrong)} | {_listed(tally.also)} | {_listed(tally.levels)} | {tally.sentence}"
        rows.append(f"| {name} | {' or '.join(right)} | {named} | {seen} |")
    return "\n".join(rows)


def _case(file: Path) -> str:
    return file.stem.rpartition("-")[0].replace("_", " ")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {num}" for name, num in counts.most_common()) or "none"


if __name__ == "__main__":
    main()
