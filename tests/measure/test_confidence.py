"""What makes a diagnosis doubtful."""

import pytest

from imagenet_opt.measure.confidence import confidence
from imagenet_opt.measure.diagnosis import Ceiling
from tests.diagnoses import BLIND, QUIET, RATES, make_diagnosis


def test_a_run_as_fast_as_expected_leaves_no_doubt() -> None:
    assert confidence(make_diagnosis(findings=(QUIET,))) == ("high", ())


@pytest.mark.parametrize(
    ("changes", "level", "doubt"),
    [
        ({"measured": 150.0}, "medium", "differ by 32%"),
        ({"measured": 250.0}, "medium", "differ by 13%"),
        ({"findings": (QUIET, BLIND)}, "medium", "1 of 2 rules"),
        ({"ceilings": {"gpu": Ceiling((800.0, 820.0))}}, "medium", "2 windows only"),
        ({"ceilings": {"full_cold": Ceiling(tuple(RATES["full_cold"] * x for x in (0.5, 0.6, 1, 1, 1, 1.4, 1.5)))}},
         "medium", "scatters"),
        ({"measured": 150.0, "findings": (BLIND,)}, "low", "1 of 1 rules"),
    ],
)  # fmt: skip
def test_each_doubt_is_named(changes: dict, level: str, doubt: str) -> None:
    found = confidence(make_diagnosis(**{"findings": (QUIET,)} | changes))
    assert found.level == level
    assert doubt in found.doubts[-1]
