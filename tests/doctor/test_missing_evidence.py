"""Diagnoses without some of the measurements."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.doctor.diagnosis import Finding
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
from tests.doctor.stories import STORIES, seen

DIED = "the device alone (the GPU ran out of memory)"


SHM = Finding("small_shared_memory", True, "64 MiB are too little", environment=True)


def without(*stages: str, not_measured: str | None) -> Evidence:
    whole = STORIES["few_workers"]
    rest = {name: ceiling for name, ceiling in whole.ceilings.items() if name not in stages}
    return change(whole, ceilings=rest, facts=replace(whole.facts, not_measured=not_measured), environment=(SHM,))


def test_what_is_not_needed_does_not_change_the_verdict() -> None:
    found = conclude(without("copy", not_measured=DIED))
    assert found.cause == "few_workers" and is_judged(found)
    assert "not measured: the device alone" in "; ".join(confidence(found).doubts)


def test_without_what_it_needs_there_is_no_verdict_but_all_the_rest(tmp_path: Path) -> None:
    found = conclude(without("gpu", "full_cold", "full_warm", not_measured=DIED))
    assert not is_judged(found)
    assert found.sentence == "Not judged: the device alone (the GPU ran out of memory)"
    assert found.findings == (SHM,) and "loader_cold" in found.measurements.ceilings
    write_diagnosis(found, tmp_path / "doctor.json")
    assert read_diagnosis(tmp_path / "doctor.json") == found
    file = io.StringIO()
    print_diagnosis(found, Console(file=file, width=100, markup=False, highlight=False))
    assert "Not judged" in file.getvalue() and "64 MiB are too little" in file.getvalue()
    assert "it/s" not in file.getvalue(), "no rate of a run that was not made"


def test_a_report_shows_no_rate_of_a_run_that_was_not_made() -> None:
    record = Record("mine", conclude(without("full_cold", "full_warm", not_measured=DIED)), summary={"steps": 7.0})
    assert tiles(record) == []
    words = [annotation.text for annotation in ceilings(record.diagnosis).layout.annotations]
    assert words and not any("measured" in word or "expected" in word for word in words)
    names = {name for name, *_ in metric_rows(record, record)}
    assert "steps" in names and not names & {"measured images/s", "expected images/s", "efficiency"}
    assert "measured / expected" not in {name for name, _ in about(record)["Confidence"]}
    assert {row.name: row.ours for row in verdict_rows(record.diagnosis, record.diagnosis)}["cause"] == "not judged"


def test_nothing_at_all_can_be_printed_too() -> None:
    found = conclude(change(seen(), ceilings={}, facts=replace(seen().facts, not_measured=DIED)))
    print_diagnosis(found, Console(file=io.StringIO(), width=100, markup=False, highlight=False))
    assert found.efficiency == 0 and confidence(found).level != "high"


def test_a_gap_that_nothing_explains_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        conclude(without("gpu", not_measured=None))


def test_whole_evidence_is_judged_as_ever() -> None:
    assert conclude(STORIES["lazy_mount"]) == judge(STORIES["lazy_mount"])
