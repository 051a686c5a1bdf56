"""The rules on the measurements of real runs whose trouble was known: see tests/doctor/suite.py."""

import gzip
import json
from collections import Counter
from pathlib import Path

from imagenet_opt.measure.diagnosis import diagnosis_of
from imagenet_opt.measure.evidence import evidence_of
from imagenet_opt.measure.verdict import judge
from tests.doctor.cases import CASES

RECORDED = Path(__file__).with_name("recorded.jsonl.gz")
MOST_WRONG = 0.1
"""Of the runs of a case: a machine that others use is in trouble of its own now and then."""


def test_the_rules_name_what_was_done() -> None:
    wrong: dict[str, Counter[str]] = {name: Counter() for name in CASES}
    runs: Counter[str] = Counter()
    for line in gzip.decompress(RECORDED.read_bytes()).splitlines():
        plain = json.loads(line)
        name = plain.pop("case")
        cause = judge(evidence_of(diagnosis_of(plain))).cause
        runs[name] += 1
        if cause != CASES[name].cause:
            wrong[name][cause] += 1
    assert runs.keys() == CASES.keys()
    assert {name: causes for name, causes in wrong.items() if causes.total() > MOST_WRONG * runs[name]} == {}
