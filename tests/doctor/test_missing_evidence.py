"""Diagnoses without some of the measurements."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.doctor.diagnosis import Diagnosis, Finding
from imagenet_opt.doctor.diagnosis_file import read_diagnosis, write_diagnosis
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.terminal_view import print_diagnosis
from imagenet_opt.doctor.verdict import conclude, is_judged, judge
from imagenet_opt.report.charts import ceilings
from imagenet_opt.report.comparison import metric_rows, verdict_rows
from imagenet_opt.report.key_figures import tiles
from imagenet_opt.report.page import about
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import change
from tests.doctor.stories import STORIES, story

DIED = "the device alone (the GPU ran out of memory)"
SHM = Finding("small_shared_memory", True, "64 MiB are too little", environment=True)


def without(*stages: str, not_measured: str | None = DIED) -> Evidence:
    run = STORIES["few_workers"]
    rest = {name: ceiling for name, ceiling in run.ceilings.items() if name not in stages}
    return change(run, ceilings=rest, facts=replace(run.facts, not_measured=not_measured), environment=(SHM,))


def printed(diagnosis: Diagnosis) -> str:
    file = io.StringIO()
    print_diagnosis(diagnosis, Console(file=file, width=100, markup=False, highlight=False))
    return file.getvalue()


def test_a_stage_that_is_not_needed_does_not_change_the_verdict() -> None:
    diagnosis = conclude(without("copy"))
    assert diagnosis.cause == "few_workers" and is_judged(diagnosis)
    assert "not measured: the device alone" in "; ".join(confidence(diagnosis).doubts)


def test_without_a_needed_stage_there_is_no_verdict_but_all_the_rest(tmp_path: Path) -> None:
    diagnosis = conclude(without("gpu", "full_cold", "full_warm"))
    assert not is_judged(diagnosis)
    assert diagnosis.sentence == "Not judged: the device alone (the GPU ran out of memory)"
    assert diagnosis.findings == (SHM,) and "loader_cold" in diagnosis.measurements.ceilings
    write_diagnosis(diagnosis, tmp_path / "doctor.json")
    assert read_diagnosis(tmp_path / "doctor.json") == diagnosis
    text = printed(diagnosis)
    assert "Not judged" in text and "64 MiB are too little" in text
    assert "it/s" not in text, "no rate of a run that was not made"


def test_a_report_shows_no_rate_of_a_run_that_was_not_made() -> None:
    record = Record("mine", conclude(without("full_cold", "full_warm")), summary={"steps": 7.0})
    assert tiles(record) == []
    words = [annotation.text for annotation in ceilings(record.diagnosis).layout.annotations]
    assert words and not any("measured" in word or "expected" in word for word in words)
    names = {name for name, *_ in metric_rows(record, record)}
    assert "steps" in names and not names & {"measured images/s", "expected images/s", "efficiency"}
    assert "measured / expected" not in {name for name, _ in about(record)["Confidence"]}
    assert {row.name: row.ours for row in verdict_rows(record.diagnosis, record.diagnosis)}["cause"] == "not judged"


def test_a_diagnosis_without_any_measurement_can_be_printed() -> None:
    diagnosis = conclude(change(story(), ceilings={}, facts=replace(story().facts, not_measured=DIED)))
    assert "Not judged" in printed(diagnosis)
    assert diagnosis.efficiency == 0 and confidence(diagnosis).level != "high"


def test_a_missing_stage_without_a_failed_experiment_is_an_error() -> None:
    with pytest.raises(KeyError):
        conclude(without("gpu", not_measured=None))
    assert conclude(STORIES["lazy_mount"]) == judge(STORIES["lazy_mount"])
