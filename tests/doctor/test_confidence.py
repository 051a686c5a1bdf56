"""Doubts about a diagnosis."""

import pytest

from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.measure.stats.rate import Ceiling
from tests.doctor.diagnoses import RATES, make_diagnosis, make_facts


def test_a_run_as_fast_as_expected_leaves_no_doubt() -> None:
    assert confidence(make_diagnosis()) == ("high", ())
    assert confidence(make_diagnosis(measured=150.0)).level == "high", "the cause explains the gap"


@pytest.mark.parametrize(
    ("changes", "level", "doubt"),
    [
        ({"cause": "unexplained", "measured": 150.0}, "medium", "gives 68% of the expected rate, and no experiment"),
        ({"measured": 250.0}, "medium", "gives 113% of the expected rate: something changed"),
        ({"ceilings": {"gpu": Ceiling((800.0, 820.0))}}, "medium", "in only 2 windows"),
        ({"ceilings": {"copy": Ceiling((9800.0,))}}, "medium", "in only 1 window,"),
        ({"ceilings": {"full_cold": Ceiling(tuple(RATES["full_cold"] * x for x in (0.5, 0.6, 1, 1, 1, 1.4, 1.5)))}},
         "medium", "varies widely"),
        ({"ceilings": {"full_cold": Ceiling((RATES["full_cold"],) * 6, {"steady": 0.0})}},
         "medium", "timed on batches that were already prepared, so a long run may be slower; raise --budget"),
        ({"facts": make_facts(cached_share_method="nobody tells")}, "medium",
         "unknown whether files are in memory: nobody tells"),
        ({"facts": make_facts(cached_share=0, no_kernels_reason="no kernel recorded; ask")}, "medium",
         "GPU's kernels count as work: no kernel recorded; ask"),
        ({"facts": make_facts(cached_share=0, cold_verified=False, cold_evidence="unverified: nobody tells")},
         "medium", "cold rates are unverified: nobody tells"),
        ({"facts": make_facts(cached_share=0, cold_passes=7.0, lazy=False, first_touch_seconds=0.04,
                              second_touch_seconds=0.02)},
         "medium", "about 7 times, and the second read is 2.0 times"),
        ({"facts": make_facts(cached_share=0, not_measured="decoding from memory (a worker died)")},
         "medium", "not measured: decoding"),
        ({"measured": 250.0, "facts": make_facts()}, "low", "it is unknown whether files are in memory"),
    ],
)  # fmt: skip
def test_each_doubt_is_named(changes: dict, level: str, doubt: str) -> None:
    judged = confidence(make_diagnosis(**changes))
    assert judged.level == level
    assert doubt in judged.doubts[-1]


def test_rates_that_the_verdict_does_not_use_are_no_doubt() -> None:
    """Of files in the other state; of a copy that was calculated."""
    facts = make_facts(cached_share=1.0, cold_verified=False, cold_passes=7.0)
    assert confidence(make_diagnosis(facts=facts)).level == "high"
    calculated = make_diagnosis(simulated="a10g", ceilings={"copy": Ceiling((9800.0,))})
    assert confidence(calculated).level == "high"


def test_the_full_run_of_the_other_state_is_no_doubt() -> None:
    """Files are on storage; the rate of the run from memory scatters, and comes from batches made before."""
    rates = {name: Ceiling((RATES[name],) * 6) for name in RATES}
    rates["full_warm"] = Ceiling(tuple(RATES["full_warm"] * x for x in (0.5, 0.6, 1, 1, 1.4, 1.5)), {"steady": 0.0})
    assert confidence(make_diagnosis(ceilings=rates)).level == "high"
    assert len(confidence(make_diagnosis(ceilings=rates, facts=make_facts(cached_share=1.0))).doubts) == 2
