"""The report of a run on the terminal and as a page, which holds hostile texts as texts."""

import json
import re
from pathlib import Path

import pytest

from imagenet_opt.cli.main import run
from imagenet_opt.cli.report import parse
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.diagnosis_file import write_diagnosis
from imagenet_opt.errors import ConfigError
from imagenet_opt.report.page import PARTS
from tests.cli.reports import report
from tests.doctor.diagnoses import make_diagnosis, write_run

ORDER = (
    ("ceilings", "ceilings"), ("step", "waterfall"), ("step", "phases"), ("timeline", "timeline"),
    ("timeline", "metrics"), ("steps", "histogram"), ("curves", "workers"), ("curves", "reads_in_flight"),
    ("rules", None), ("baseline", None), ("about", None),
)  # fmt: skip
"""Parts from the top, and the figures in each part."""


def test_a_run_and_its_baseline_on_the_page_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"cpu": "AMD EPYC 7R32", "gpu": "NVIDIA H100", "usable CPUs": "8"}
    changes = {
        "measured": 100.0,
        "simulated": "a10g",
        "cause": "slow_decode",
        "meaning": "decoding takes the CPUs",
        "sentence": "It was slow.",
    }
    before = write_run(tmp_path / "before", machine=machine, **changes)
    page = report(write_run(tmp_path / "mine"), "--baseline", before)
    assert page.loads == ["data:,"], "nothing is fetched"
    assert page.parts == list(dict.fromkeys(part for part, _ in ORDER)) == list(PARTS)
    assert page.drawings == [f"plot-{figure}" for _, figure in ORDER if figure]
    for words in (
        *PARTS.values(), "0.83 it/s", "3.02 it/s", "data.reads_in_flight=64", "sudo sh -c 'echo 4096",
        "measured images/s 212 100 2.12", "Careful: gpu differs: mine has NVIDIA A10G, before has NVIDIA H100.",
        "It was slow.", "memory 31 GiB", "driver 580.95.05", "CUDA 13.0", "confidence: high",
    ):  # fmt: skip
        assert words in page.text, words
    output = capsys.readouterr().out
    assert "The GPU waits for storage 72 % of the time" in output.replace("\n", " ")
    for words in ("files one by one", "data.reads_in_flight=64", "confidence", "full run, files on storage"):
        assert words in output, words
    assert output.count("3.02 it/s") == 1, "each rate is printed once"
    assert "careful: the accelerators differ: mine has a real accelerator, before has a simulated a10g" in output
    assert re.search(r"cause +storage answers late \(baseline: decoding takes the CPUs\)", output)
    assert output.splitlines()[-1].startswith("wrote ")


def test_a_run_without_a_verdict_shows_its_rates_and_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").unlink()
    (folder / ".hydra/config.yaml").write_text("callbacks:\n  rehearsal:\n    name: a10g\n")
    page = report(folder)
    assert "mine (simulated)" in page.text and "simulated: a10g" in page.text
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[0] == "mine"
    assert re.search(r"it/s \(simulated\) +0\.83", output) and re.search(r"images/s \(simulated\) +212", output)
    assert any(line.startswith("no verdict: no doctor.json: to get a verdict, run imagenet-opt") for line in lines[-4:])


def test_an_absent_part_says_how_to_create_it(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"throughput/images_per_second": 212.0}))
    (folder / ".hydra/overrides.yaml").write_text("[data=demo, resume_from=null]")
    page = report(folder)
    assert not page.drawings
    assert f"run imagenet-opt doctor data=demo --json '{folder}/doctor.json'" in page.text
    assert "no timeline: train.py records a timeline unless it is switched off with '~callbacks.timeline'" in page.text
    assert "212" in page.text
    assert page.parts == ["ceilings", "timeline", "about"], "no empty box"


def test_a_doctor_file_alone_is_enough_and_its_long_reason_is_not_the_headline(tmp_path: Path) -> None:
    changes = {"curves": {}, "waterfall": (), "step_seconds": (), "phases": {}, "measured": 0.0}
    reason = "Not judged: the GPU's kernels are hidden; run sudo sh -c 'modprobe nvidia'"
    write_diagnosis(make_diagnosis(sentence=reason, **changes), tmp_path / "found.json")
    page = report(tmp_path / "found.json")
    assert page.drawings == ["plot-ceilings"]
    assert page.parts == ["ceilings", "timeline", "rules", "about"]
    (headline,) = re.findall(r"<h1>(.*?)</h1>", (tmp_path / "report.html").read_text())
    assert "modprobe" not in headline and "modprobe nvidia" in page.text


def test_a_damaged_file_is_named_and_the_other_parts_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").write_text("{")
    (folder / "summary.json").write_text('{"a": ')
    (folder / ".hydra/config.yaml").write_text("a: [\n")
    page = report(folder)
    assert "plot-timeline" in page.drawings
    assert "doctor.json is not a file of imagenet-opt doctor" in page.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "nowhere: "), ([], "RUN"), ([".", "--baseline", "nowhere"], "--baseline nowhere: ")],
)
def test_unsuitable_arguments_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(arguments)


def test_an_empty_run_folder_and_an_unwritable_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds nothing to report"):
        run("report", [str(tmp_path)])
    (tmp_path / "summary.json").write_text('{"steps": 7}')
    with pytest.raises(ConfigError, match="--out"):
        run("report", [str(tmp_path), "--out", str(tmp_path / "none" / "a.html")])


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
