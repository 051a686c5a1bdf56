"""doctor.json: what is written is read, and what is not the doctor's is refused in a word."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.diagnosis import Finding, Measurements
from imagenet_opt.doctor.diagnosis_file import read_diagnosis, write_diagnosis
from imagenet_opt.errors import ConfigError
from tests.doctor.diagnoses import make_diagnosis

DOCS = Path(__file__).parents[2] / "docs/doctor.md"


@pytest.mark.parametrize("changes", [{}, {"simulated": "a10g", "next_stage": None, "next_gain": None, "curves": {}}])
def test_what_is_written_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = make_diagnosis(**changes)
    write_diagnosis(found, tmp_path / "doctor.json")
    assert read_diagnosis(tmp_path / "doctor.json") == found


def test_what_has_a_default_may_be_empty(tmp_path: Path) -> None:
    found = make_diagnosis(findings=(Finding("a", None, "b"),))
    known = found.measurements
    measurements = Measurements(simulated=None, batch_size=8, ceilings=known.ceilings, facts=known.facts)
    bare = dataclasses.replace(found, measurements=measurements)
    write_diagnosis(bare, tmp_path / "doctor.json")
    assert read_diagnosis(tmp_path / "doctor.json") == bare


def test_the_file_says_by_itself_what_was_found(tmp_path: Path) -> None:
    """For programs that do not have ours."""
    found = make_diagnosis()
    write_diagnosis(found, tmp_path / "doctor.json")
    plain = json.loads((tmp_path / "doctor.json").read_text())
    assert plain["verdict"] == found.sentence
    assert plain["meaning"] == CAUSES["storage_latency"].meaning
    assert plain["unexplained"] == pytest.approx(1 - 212 / 221)
    assert plain["confidence"] == {"level": "high", "doubts": []}
    assert plain["efficiency"] == pytest.approx(212 / 221)
    assert plain["ceilings"]["gpu"]["images_per_second"] == pytest.approx(812)
    assert plain["ceilings"]["gpu"]["low"] == pytest.approx(812 * 0.97)


KEYS = {
    *("format", "verdict", "cause", "meaning", "expected", "measured", "efficiency", "unexplained", "confidence"),
    *("next_stage", "next_gain", "findings", "ceilings", "waterfall", "step_seconds", "phases", "curves", "facts"),
    *("simulated", "batch_size", "machine", "versions", "config", "command", "date"),
}


def test_the_file_has_the_documented_keys(tmp_path: Path) -> None:
    write_diagnosis(make_diagnosis(), tmp_path / "doctor.json")
    plain = json.loads((tmp_path / "doctor.json").read_text())
    assert plain.keys() >= KEYS and "sentence" not in plain
    documented = re.findall(r"`(\w+)`", DOCS.read_text().partition("## The file")[2].partition("\n## ")[0])
    assert set(documented) >= KEYS


def test_without_a_run_nothing_is_called_unexplained() -> None:
    assert make_diagnosis(measured=0.0).unexplained is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a file of imagenet-opt doctor"),
        ("[1, 2]", "not a file of imagenet-opt doctor"),
        ('{"format": 3}', "not a file of imagenet-opt doctor.*verdict"),
        ('{"format": 2}', "format 2, expected 3; run imagenet-opt doctor again"),
        ('{"format": 3, "ceilings": {"gpu": 3}}', "not a file of imagenet-opt doctor"),
        ("\ud800", "not a file of imagenet-opt doctor"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "doctor.json"
    file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=message):
        read_diagnosis(file)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    write_diagnosis(make_diagnosis(), file)
    file.write_text(file.read_text()[:-100])
    with pytest.raises(ConfigError, match="not a file of imagenet-opt doctor"):
        read_diagnosis(file)


def test_an_absent_file_says_what_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*doctor.json.*imagenet-opt doctor writes it"):
        read_diagnosis(tmp_path / "doctor.json")
