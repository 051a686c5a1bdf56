"""Verdicts: their sentence and their doubts; doctor.json; diagnoses without some of the measurements."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.diagnosis_file import FORMAT, as_json, read_diagnosis
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.numbers import tiles
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import RATES, changed, make_diagnosis
from tests.doctor.stories import LAZY, RAM_FOR_ALL, SLOW_STORAGE, STORIES, cut_to, story

DOCS = Path(__file__).parents[2] / "docs/doctor.md"
NAMED, STORAGE = (Finding(rule, True, "", gain=1.5, frees=rule) for rule in ("slow_copy", "storage_latency"))
DIED = {"the device alone": "the GPU ran out of memory"}
FULL = RATES["full_cold"]
SCATTERED = tuple(FULL * x for x in (0.5, 0.6, 1, 1, 1, 1.4, 1.5))


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (STORIES["storage_latency"], "Storage-bound: 58 of a possible 318 img/s."),
        (STORIES["slow_decode"], "CPU-bound: 139 img/s, and the simulated a10g alone reaches 320."),
        (STORIES["cache_too_small"], "Storage-bound: about 97 img/s in each later epoch, of a possible 310."),
        (story(**RAM_FOR_ALL), "Storage-bound: about 58 img/s in the first epoch, 310 in later ones."),
        (
            story(touches=replace(LAZY, first_seconds=0.3), in_flight=8.0),
            "Storage-bound: about 213 img/s in the first epoch, 316 in later ones.",
        ),
    ],
)
def test_a_sentence_compares_the_run_with_what_is_possible(run: Evidence, sentence: str) -> None:
    assert judge(run).sentence == sentence


def test_the_unexplained_share_is_a_number_and_no_cause_hides_it() -> None:
    slower = judge(story(SLOW_STORAGE | {"full_cold": 42.0}, {"fetch": 0.7}))
    assert (slower.cause, slower.unexplained) == ("storage_latency", pytest.approx(0.3))


def test_the_measurements_of_a_file_give_the_same_verdict(tmp_path: Path) -> None:
    for cause, run in STORIES.items():
        (tmp_path / "doctor.json").write_text(as_json(judge(run)))
        diagnosis = read_diagnosis(tmp_path / "doctor.json")
        assert diagnosis == judge(run) == judge(diagnosis.measurements), cause
    earlier = json.loads((tmp_path / "doctor.json").read_text())  # of a version without these fields
    del earlier["setup"]["budget"], earlier["host"]["installed_cores"], earlier["trial"]
    for finding in earlier["findings"]:
        del finding["frees"]
    (tmp_path / "doctor.json").write_text(json.dumps(earlier))
    assert judge(read_diagnosis(tmp_path / "doctor.json").measurements).cause == cause


def test_the_file_needs_no_other_program_and_has_the_documented_keys(tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    file.write_text(as_json(make_diagnosis()))
    plain = json.loads(file.read_text())
    assert plain["verdict"] == make_diagnosis().sentence and plain["meaning"] == "storage answers late"
    assert plain["unexplained"] == pytest.approx(1 - 212 / 221) and plain["efficiency"] == pytest.approx(212 / 221)
    assert plain["confidence"] == {"level": "high", "doubts": []}
    assert plain["ceilings"]["gpu"]["images_per_second"] == pytest.approx(812)
    assert plain["ceilings"]["gpu"]["low"] == pytest.approx(812 * 0.97)
    table = DOCS.read_text().partition("## The file")[2].partition("\n## ")[0]
    documented = {
        key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }
    assert len(documented) > 20 and documented <= plain.keys()


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    with pytest.raises(ConfigError, match="cannot read"):
        read_diagnosis(file)
    contents = {
        f'{{"format": {FORMAT}, "verdict": "", "measured": "many"}}': "measurements: simulated: Field required",
        f'{{"format": {FORMAT}}}': "not a file of",
        '{"format": 2}': f"expected {FORMAT}",
        "\ud800": "not a file of",
    }
    for content, message in contents.items():
        file.write_bytes(content.encode(errors="surrogatepass"))
        with pytest.raises(ConfigError, match=message):
            read_diagnosis(file)


@pytest.mark.parametrize(
    ("changes", "level", "doubt"),
    [
        ({}, "high", ""),
        ({"cached_share": 1.0, "unverified": "nobody tells"}, "high", ""),
        ({"cause": "unexplained", "measured": 150.0}, "medium", "gives 68% of the expected rate, and no experiment"),
        ({"measured": 250.0}, "medium", "gives 113% of the expected rate: something changed"),
        ({"ceilings": {"full_cold": Ceiling(SCATTERED)}}, "medium", "varies widely"),
        ({"ceilings": {"full_cold": Ceiling((FULL, FULL))}}, "medium", "in only 2 windows"),
        ({"cached_share": None, "cached_share_method": "nobody tells"}, "medium", "in memory: nobody tells"),
        ({"unverified": "unverified: nobody tells"}, "medium", "cold rates are unverified: nobody tells"),
        ({"failed": DIED}, "medium", "not measured: the GPU ran out of memory (the device alone)"),
        ({"measured": 250.0, "num_processes": 2}, "low", "one of 2 processes"),
        ({"cached_share": 0.5}, "medium", "50% of the data was in memory"),
        ({"cached_share": 0.5, "left_out": "nothing stays"}, "high", ""),
        (
            {"findings": (replace(NAMED, rule="storage_latency", frees="storage"), NAMED)},
            "medium",
            "slow_copy would explain it too",
        ),
        ({"findings": (replace(NAMED, rule="storage_latency", frees="", gain=2.0), NAMED)}, "high", ""),
    ],
)
def test_each_doubt_is_named(changes: dict[str, Any], level: str, doubt: str) -> None:
    judged = make_diagnosis(**changes).confidence
    assert judged.level == level and doubt in "; ".join(judged.doubts)


def without(*stages: str) -> Evidence:
    run = STORIES["few_workers"]
    rest = {name: ceiling for name, ceiling in run.ceilings.items() if name not in stages}
    return changed(run, ceilings=rest, failed=DIED, **cut_to(1, 4))


def test_without_a_needed_stage_there_is_no_verdict_but_all_the_rest() -> None:
    assert judge(without("copy")).cause == "little_memory"
    diagnosis = judge(without("gpu", "full_cold", "full_warm"))
    assert not diagnosis.is_judged and diagnosis.unexplained is None
    assert diagnosis.sentence == "Not judged: the GPU ran out of memory (the device alone)"
    rules = {finding.rule: finding.fired for finding in diagnosis.findings}
    assert rules["small_memory"] is True and rules["the device alone"] is None
    assert tiles(Record("mine", diagnosis)) == [], "no rate of a run that was not made"
    nothing = judge(changed(story(), ceilings={}, failed=DIED))
    assert nothing.efficiency == 0 and nothing.confidence.level == "low"
