"""The rules on the measurements of real runs with a known cause: see suites/doctor/suite.py."""

import gzip
import json
from functools import cache
from pathlib import Path

from suites.doctor.cases import CASES
from suites.doctor.suite import Tally, tallied

RECORDED = Path(__file__).with_name("recorded.jsonl.gz")
MOST_WRONG = 1
"""Of the 20 runs of a case: on a shared machine, other processes sometimes slow down a run."""


@cache
def tallies() -> dict[str, Tally]:
    rows = map(json.loads, gzip.decompress(RECORDED.read_bytes()).splitlines())
    return tallied((row.pop("case"), row) for row in rows)


def test_the_rules_name_the_known_cause() -> None:
    assert sum(tally.causes.total() for tally in tallies().values()) == 260
    for name, tally in tallies().items():
        wrong = [cause for cause in tally.causes.elements() if cause not in CASES[name].right]
        assert len(wrong) <= MOST_WRONG, (name, wrong)


def test_no_other_rule_fires() -> None:
    """Each case has one fault in a run that is healthy otherwise."""
    assert not tallies()["none"].also
    assert {name: tally.also for name, tally in tallies().items() if tally.also.total() > MOST_WRONG} == {}
