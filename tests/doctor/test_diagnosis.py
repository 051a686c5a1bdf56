"""Verdicts: their sentence and their doubts; doctor.json; diagnoses without some of the measurements."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.doctor.diagnosis import Diagnosis, judge
from imagenet_opt.doctor.diagnosis_file import FORMAT, read_diagnosis, write_diagnosis
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.measurements import Touches
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.charts import ceilings
from imagenet_opt.report.comparison import metric_rows, verdict_rows
from imagenet_opt.report.key_figures import tiles
from imagenet_opt.report.page import about
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import RATES, changed, make_diagnosis
from tests.doctor.stories import LAZY, OTHERS, READING, SLOW_STORAGE, STORIES, story

DOCS = Path(__file__).parents[2] / "docs/doctor.md"
KEYS = {
    *("format", "verdict", "cause", "meaning", "expected", "measured", "efficiency", "unexplained", "confidence"),
    *("next_stage", "next_gain", "findings", "ceilings", "limits", "waterfall", "step_seconds", "phases", "curves"),
    *("setup", "host", "simulated", "batch_size", "machine", "versions", "config", "command", "date"),
}
DIED = {"the device alone": "the GPU ran out of memory"}
FULL = RATES["full_cold"]
SCATTERED = tuple(FULL * x for x in (0.5, 0.6, 1, 1, 1, 1.4, 1.5))


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("healthy", "Healthy: the simulated a10g computes 99% of the time, 316 img/s."),
        ("storage_latency", "Storage-bound: 58 of a possible 318 img/s."),
        ("slow_decode", "CPU-bound: 139 img/s, and the simulated a10g alone reaches 320."),
        ("cold_cache", "Storage-bound: about 58 img/s in the first epoch, 310 in later ones."),
        ("cache_too_small", "Storage-bound: about 97 img/s in each later epoch, of a possible 310."),
        ("unexplained", "Unexplained: 200 of the 318 img/s that the stages alone allow."),
    ],
)
def test_a_sentence_compares_the_run_with_what_is_possible(cause: str, sentence: str) -> None:
    assert judge(STORIES[cause]).sentence == sentence


def test_a_cause_that_passes_names_both_epochs() -> None:
    ram = {"available_memory": 1 << 40, "bound": "latency", "touches": Touches(0.04, 0.04, False, 64, "")}
    passes = judge(story({**SLOW_STORAGE, "full_warm": 310.0}, READING, **ram))
    assert passes.sentence == "Storage-bound: about 58 img/s in the first epoch, 310 in later ones."
    assert dict(passes.explanation)["remedy"].startswith("this passes after the first epoch")
    touched = judge(story(touches=replace(LAZY, first_seconds=0.3), in_flight=8.0))
    assert touched.sentence == "Storage-bound: about 213 img/s in the first epoch, 316 in later ones."


def test_the_unexplained_share_is_a_number_and_no_cause_hides_it() -> None:
    assert judge(STORIES["unexplained"]).unexplained == pytest.approx(1 - 200 / 318)
    assert judge(STORIES["healthy"]).unexplained == pytest.approx(2 / 318)
    slower = judge(story(SLOW_STORAGE | {"full_cold": 42.0}, {"fetch": 0.7}, bound="latency"))
    assert (slower.cause, slower.gap) == ("storage_latency", "30% of the rate that the stages alone allow")
    assert judge(STORIES["slow_logging"]).gap.endswith("this cause appears only in the full run")


def test_the_measurements_of_a_file_give_the_same_verdict(tmp_path: Path) -> None:
    for cause, run in STORIES.items():
        write_diagnosis(judge(run), tmp_path / "doctor.json")
        diagnosis = read_diagnosis(tmp_path / "doctor.json")
        assert diagnosis == judge(run) == judge(diagnosis.measurements), cause


def test_the_file_needs_no_other_program_and_has_the_documented_keys(tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    write_diagnosis(make_diagnosis(), file)
    plain = json.loads(file.read_text())
    assert plain["verdict"] == make_diagnosis().sentence and plain["meaning"] == "storage answers late"
    assert plain["unexplained"] == pytest.approx(1 - 212 / 221) and plain["efficiency"] == pytest.approx(212 / 221)
    assert plain["confidence"] == {"level": "high", "doubts": []}
    assert plain["ceilings"]["gpu"]["images_per_second"] == pytest.approx(812)
    assert plain["ceilings"]["gpu"]["low"] == pytest.approx(812 * 0.97)
    documented = re.findall(r"`(\w+)`", DOCS.read_text().partition("## The file")[2].partition("\n## ")[0])
    assert plain.keys() >= KEYS and set(documented) >= KEYS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "not a file of imagenet-opt doctor"),
        (f'{{"format": {FORMAT}}}', "not a file of imagenet-opt doctor.*verdict"),
        ('{"format": 2}', f"format 2, expected {FORMAT}; run imagenet-opt doctor again"),
        (f'{{"format": {FORMAT}, "verdict": "", "ceilings": {{"gpu": 3}}}}', "not a file of imagenet-opt doctor"),
        ("\ud800", "not a file of imagenet-opt doctor"),
        (None, r"cannot read .*doctor.json.*imagenet-opt doctor writes it"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "doctor.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=message):
        read_diagnosis(tmp_path / "doctor.json")


@pytest.mark.parametrize(
    ("changes", "level", "doubt"),
    [
        ({"cause": "unexplained", "measured": 150.0}, "medium", "gives 68% of the expected rate, and no experiment"),
        ({"measured": 250.0}, "medium", "gives 113% of the expected rate: something changed"),
        ({"ceilings": {"gpu": Ceiling((800.0, 820.0))}}, "medium", "in only 2 windows"),
        ({"ceilings": {"full_cold": Ceiling(SCATTERED)}}, "medium", "varies widely"),
        ({"cached_share": None, "cached_share_method": "nobody tells"}, "medium", "in memory: nobody tells"),
        ({"no_kernels": "no kernel recorded; ask"}, "medium", "GPU's kernels count as work: no kernel recorded; ask"),
        ({"unverified": "unverified: nobody tells"}, "medium", "cold rates are unverified: nobody tells"),
        ({"num_processes": 8}, "medium", "one of 8 processes was measured"),
        ({"gpu": OTHERS}, "medium", "other processes are on the GPU"),
        ({"failed": DIED}, "medium", "not measured: the GPU ran out of memory (the device alone)"),
        ({"measured": 250.0, "num_processes": 2}, "low", "one of 2 processes"),
    ],
)
def test_each_doubt_is_named(changes: dict[str, Any], level: str, doubt: str) -> None:
    judged = make_diagnosis(**changes).confidence
    assert judged.level == level and doubt in judged.doubts[-1]


def test_a_run_as_fast_as_expected_leaves_no_doubt() -> None:
    """Nor do rates that the verdict does not use: of files in the other state, and a copy that was calculated."""
    assert make_diagnosis().confidence == ("high", ())
    assert make_diagnosis(cached_share=1.0, unverified="nobody tells").confidence.level == "high"
    calculated = make_diagnosis(simulated="a10g", ceilings={"copy": Ceiling((9800.0,))})
    assert calculated.confidence.level == "high"


def test_a_small_data_set_that_a_server_caches_is_a_doubt() -> None:
    loader = Ceiling((60.0,) * 6, {"passes": 7.0})
    run = make_diagnosis(ceilings={"loader_cold": loader}, touches=Touches(0.04, 0.02, False, 64, ""))
    assert "about 7 times, and the second read is 2.0 times" in run.confidence.doubts[-1]


def without(*stages: str, failed: dict[str, str] = DIED) -> Evidence:
    run = STORIES["few_workers"]
    rest = {name: ceiling for name, ceiling in run.ceilings.items() if name not in stages}
    return changed(run, ceilings=rest, failed=failed, free_shared_memory=1)


def test_a_stage_that_is_not_needed_does_not_change_the_verdict() -> None:
    diagnosis = judge(without("copy"))
    assert diagnosis.cause == "few_workers" and diagnosis.is_judged


def test_without_a_needed_stage_there_is_no_verdict_but_all_the_rest() -> None:
    diagnosis = judge(without("gpu", "full_cold", "full_warm"))
    assert not diagnosis.is_judged and diagnosis.unexplained is None
    assert diagnosis.sentence == "Not judged: the GPU ran out of memory (the device alone)"
    rules = {finding.rule: finding.fired for finding in diagnosis.findings}
    assert rules["small_shared_memory"] is True and rules["the device alone"] is None
    with pytest.raises(KeyError):
        judge(without("gpu", failed={}))
    nothing = judge(changed(story(), ceilings={}, failed=DIED))
    assert nothing.efficiency == 0 and nothing.confidence.level == "low"


def test_a_report_shows_no_rate_of_a_run_that_was_not_made() -> None:
    diagnosis: Diagnosis = judge(without("full_cold", "full_warm"))
    record = Record("mine", diagnosis, summary={"steps": 7.0})
    assert tiles(record) == []
    words = [annotation.text for annotation in ceilings(diagnosis).layout.annotations]
    assert words and not any("measured" in word or "expected" in word for word in words)
    names = {name for name, *_ in metric_rows(record, record)}
    assert "steps" in names and not names & {"measured images/s", "expected images/s", "efficiency"}
    assert "measured / expected" not in {name for name, _ in about(record)["Confidence"]}
    assert {row.name: row.ours for row in verdict_rows(diagnosis, diagnosis)}["cause"] == "not judged"
