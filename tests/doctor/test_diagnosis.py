"""Verdicts: their sentence and their doubts; doctor.json; diagnoses without some of the measurements."""

import json
import re
from pathlib import Path

import pytest

from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.diagnosis_file import FORMAT, as_json, read_diagnosis
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import ConfigError
from imagenet_opt.report.numbers import tiles
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import changed, make_diagnosis
from tests.doctor.stories import SLOW_STORAGE, STORIES, cut_to, story

DOCS = Path(__file__).parents[2] / "docs/doctor.md"
DIED = {"the device alone": "the GPU ran out of memory"}


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
    earlier = as_json(make_diagnosis()).replace(f'"format": {FORMAT}', '"format": 2')
    for content in (f'{{"format": {FORMAT}, "verdict": ""}}', earlier, "\ud800"):
        file.write_bytes(content.encode(errors="surrogatepass"))
        with pytest.raises(ConfigError, match=r"doctor\.json"):
            read_diagnosis(file)


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
