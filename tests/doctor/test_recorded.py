"""The rules on the measurements of real runs whose trouble was known: see suites/doctor/suite.py."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from suites.doctor.cases import CASES
from suites.doctor.suite import Tally, tallied

RECORDED = Path(__file__).with_name("recorded.jsonl.gz")
MOST_WRONG = 1
"""Of the 20 runs of a case: a machine that others use is in trouble of its own now and then."""


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in gzip.decompress(RECORDED.read_bytes()).splitlines():
        plain = json.loads(line)
        yield plain.pop("case"), plain


@cache
def found() -> dict[str, Tally]:
    return tallied(runs())


def test_the_rules_name_what_was_done() -> None:
    assert sum(tally.causes.total() for tally in found().values()) == 260
    assert {name: tally.causes for name, tally in found().items() if _num_wrong(name, tally) > MOST_WRONG} == {}


def _num_wrong(name: str, tally: Tally) -> int:
    return sum(num for cause, num in tally.causes.items() if cause not in CASES[name].right)


def test_no_other_rule_fires_beside_the_one_that_must() -> None:
    """Each fault is one thing done to a run that is healthy otherwise: what else is said of it is not so."""
    assert not found()["none"].also
    assert {name: tally.also for name, tally in found().items() if tally.also.total() > MOST_WRONG} == {}
