"""The report of a run on the terminal and as a page, which holds hostile texts as texts."""

import json
from pathlib import Path

import pytest

from imagenet_opt.doctor.rule import Finding
from tests.cli.reports import report
from tests.doctor.diagnoses import write_run


def test_a_run_and_its_baseline_on_the_page_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"cpu": "AMD EPYC 7R32", "gpu": "NVIDIA H100", "usable CPUs": "8"}
    changes = {"measured": 100.0, "simulated": "a10g", "cause": "slow_decode"}
    before = write_run(tmp_path / "before", machine=machine, **changes)
    page = report(write_run(tmp_path / "mine"), "--baseline", before)
    assert page.loads == ["data:,"], "nothing is fetched"
    assert len(page.drawings) == 8
    for words in ("data.reads_in_flight=64", "measured images/s 212 100 2.12", "NVIDIA H100", "confidence: high"):
        assert words in page.text, words
    output = capsys.readouterr().out
    assert "data.reads_in_flight=64" in output and output.count("3.02 it/s") == 1
    assert "careful: " in output and "simulated a10g" in output


def test_an_absent_part_says_how_to_create_it(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"numbers": {"throughput/images_per_second": 212.0}}))
    (folder / ".hydra/overrides.yaml").write_text("[data=demo, resume_from=null]")
    page = report(folder)
    assert not page.drawings
    assert f"run imagenet-opt doctor data=demo --json '{folder}/doctor.json'" in page.text
    assert "212" in page.text and "~callbacks.timeline" in page.text


def test_a_run_of_an_older_version_has_its_numbers(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"throughput/images_per_second": 212.0}))
    assert "212 images/s" in report(tmp_path).text


def test_a_damaged_file_is_named_and_the_other_parts_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    for name, text in (("doctor.json", "{"), ("record.json", '{"a": '), (".hydra/config.yaml", "a: [\n")):
        (folder / name).write_text(text)
    page = report(folder)
    assert "plot-timeline" in page.drawings and "doctor.json" in page.text


EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;"


def test_no_text_of_a_file_becomes_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a<script>b"
    finding = Finding(EVIL, True, EVIL, EVIL, (EVIL,), (EVIL,), 2.0)
    texts = {key: {EVIL: EVIL} for key in ("machine", "versions", "config")}
    values = texts | {"sentence": EVIL, "command": EVIL, "date": EVIL, "simulated": EVIL, "next_stage": EVIL}
    write_run(folder, findings=(finding,), phases={EVIL: 0.1}, unverified=EVIL, **values)
    (folder / ".hydra/config.yaml").write_text(f"data:\n  root: {json.dumps(EVIL)}\n")
    page = report(folder, "--baseline", folder)
    assert "owned" in page.text and page.loads == ["data:,"]
    scripts = (folder / "report.html").read_text().split("<script")[1:]
    assert not any("document.title=" in script.partition("</script>")[0][:200] for script in scripts)
