"""doctor.json: a written diagnosis is read again, and other files are refused with the reason."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.doctor.diagnosis import Diagnosis, Finding, Measurements
from imagenet_opt.doctor.diagnosis_file import read_diagnosis, write_diagnosis
from imagenet_opt.doctor.verdict import CAUSES
from imagenet_opt.errors import ConfigError
from tests.doctor.diagnoses import make_diagnosis, make_facts

DOCS = Path(__file__).parents[2] / "docs/doctor.md"
KEYS = {
    *("format", "verdict", "cause", "meaning", "expected", "measured", "efficiency", "unexplained", "confidence"),
    *("next_stage", "next_gain", "findings", "ceilings", "waterfall", "step_seconds", "phases", "curves", "facts"),
    *("simulated", "batch_size", "machine", "versions", "config", "command", "date"),
}
BARE = Measurements(simulated=None, batch_size=8, ceilings={}, facts=make_facts())
"""All fields with a default are empty."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "doctor.json"


@pytest.mark.parametrize(
    "diagnosis",
    [
        make_diagnosis(),
        make_diagnosis(simulated="a10g", next_stage=None, next_gain=None, curves={}),
        replace(make_diagnosis(findings=(Finding("a", None, "b"),)), measurements=BARE),
    ],
)
def test_a_written_diagnosis_is_read_again(file: Path, diagnosis: Diagnosis) -> None:
    write_diagnosis(diagnosis, file)
    assert read_diagnosis(file) == diagnosis


def test_the_file_needs_no_other_program_and_has_the_documented_keys(file: Path) -> None:
    diagnosis = make_diagnosis()
    write_diagnosis(diagnosis, file)
    plain = json.loads(file.read_text())
    assert plain["verdict"] == diagnosis.sentence and "sentence" not in plain
    assert plain["meaning"] == CAUSES["storage_latency"].meaning
    assert plain["unexplained"] == pytest.approx(1 - 212 / 221)
    assert plain["confidence"] == {"level": "high", "doubts": []}
    assert plain["efficiency"] == pytest.approx(212 / 221)
    assert plain["ceilings"]["gpu"]["images_per_second"] == pytest.approx(812)
    assert plain["ceilings"]["gpu"]["low"] == pytest.approx(812 * 0.97)
    assert plain.keys() >= KEYS
    documented = re.findall(r"`(\w+)`", DOCS.read_text().partition("## The file")[2].partition("\n## ")[0])
    assert set(documented) >= KEYS


def test_without_a_run_nothing_is_unexplained() -> None:
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
        (None, r"cannot read .*doctor.json.*imagenet-opt doctor writes it"),
    ],
)
def test_another_file_is_refused(file: Path, content: str | None, message: str) -> None:
    if content is not None:
        file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=message):
        read_diagnosis(file)


def test_a_file_cut_short_is_refused(file: Path) -> None:
    write_diagnosis(make_diagnosis(), file)
    file.write_text(file.read_text()[:-100])
    with pytest.raises(ConfigError, match="not a file of imagenet-opt doctor"):
        read_diagnosis(file)
