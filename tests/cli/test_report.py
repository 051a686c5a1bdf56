"""The report of a run on the terminal and as a page; test_report_in_browser.py opens the page."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.cli.main import run
from imagenet_opt.cli.report import parse
from imagenet_opt.doctor.diagnosis_file import write_diagnosis
from imagenet_opt.errors import ConfigError
from imagenet_opt.report.page import PARTS
from tests.cli.reports import report
from tests.doctor.diagnoses import READS, make_diagnosis, write_run, write_timeline

ORDER = (
    ("ceilings", "ceilings"), ("step", "waterfall"), ("step", "phases"), ("timeline", "timeline"),
    ("timeline", "metrics"), ("steps", "histogram"), ("curves", "workers"), ("curves", "reads_in_flight"),
    ("curves", "cached_share"), ("rules", None), ("baseline", "overlay"), ("about", None),
)  # fmt: skip
"""Parts from the top, and the figures in each part."""


def test_a_run_with_all_files_has_every_part_in_its_order(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    page = report(folder, "--baseline", write_run(tmp_path / "before", measured=100.0), "--price-per-hour", "2")
    assert all(heading in page.text for heading in PARTS.values())
    assert "0.83 it/s" in page.text and "3.02 it/s" in page.text
    assert f"${2 * 1_281_167 / 212 / 3600:.2f}" in page.text
    assert "data.reads_in_flight=64" in page.text and "sudo sh -c 'echo 4096" in page.text
    assert re.search(r"measured images/s 212 100 2\.12", page.text)
    assert page.loads == ["data:,"], "nothing is fetched"

    assert page.parts == list(dict.fromkeys(part for part, _ in ORDER)) == list(PARTS)
    assert list(page.drawings) == [f"plot-{figure}" for _, figure in ORDER if figure]
    html = (folder / "report.html").read_text()
    sections = {part: html.index(f'<section class="card" id="{part}"') for part in PARTS}
    for part, figure in ORDER:
        if figure:
            above = [name for name in PARTS if sections[name] < html.index(f'id="plot-{figure}"')]
            assert above[-1] == part, figure
    assert page.text.index("The GPU waits for storage 72 % of the time") < page.text.index(PARTS["ceilings"])


def test_the_terminal_shows_the_verdict_and_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "before", measured=100.0, simulated="a10g", cause="slow_decode")
    report(write_run(tmp_path / "mine"), "--baseline", before, "--price-per-hour", "2")
    output = capsys.readouterr().out
    assert "The GPU waits for storage 72 % of the time" in output.replace("\n", " ")
    for words in ("files one by one", "data.reads_in_flight=64", "confidence", "full run, files on storage"):
        assert words in output, words
    assert f"${2 * 1_281_167 / 212 / 3600:.2f} an epoch" in output
    assert output.count("3.02 it/s") == 1, "each rate is printed once"
    assert "careful: the accelerators differ: mine has a real accelerator, before has a simulated a10g" in output
    assert re.search(r"cause +storage answers late +decoding takes the CPUs", output)
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


def test_a_baseline_and_the_measurements_are_in_the_page(tmp_path: Path) -> None:
    machine = {"cpu": "AMD EPYC 7R32", "gpu": "NVIDIA H100", "usable CPUs": "8"}
    before = write_run(tmp_path / "before", sentence="It was slow.", machine=machine)
    page = report(write_run(tmp_path / "mine"), "--baseline", before)
    assert "Careful: gpu differs: mine has NVIDIA A10G, before has NVIDIA H100." in page.text
    assert "It was slow." in page.text
    assert "reads in flight fired; 3.10 times as fast once fixed" in page.text
    assert re.search(r"GPU alone 315\.3 315\.3 1\.00", page.text)
    end = page.text[page.text.rindex(PARTS["about"]) :]
    facts = ("num_samples 1281167", "memory 31 GiB", "driver 580.95.05", "CUDA 13.0")
    for words in (*facts, "confidence high"):
        assert words in end, words


def test_an_absent_part_says_how_to_create_it(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"throughput/images_per_second": 212.0}))
    (folder / ".hydra/overrides.yaml").write_text("[data=demo, resume_from=null]")
    page = report(folder)
    assert not page.drawings
    assert f"run imagenet-opt doctor data=demo --json '{folder}/doctor.json'" in page.text
    assert "The run" in page.text and PARTS["ceilings"] not in page.text
    assert "no timeline: train.py records a timeline unless it is switched off with '~callbacks.timeline'" in page.text
    assert "212" in page.text
    assert "no baseline; add one with --baseline RUN" in page.text
    assert page.parts == ["ceilings", "timeline", "about"], "no empty box"


def test_a_doctor_file_alone_is_enough(tmp_path: Path) -> None:
    write_diagnosis(make_diagnosis(curves={}, waterfall=(), step_seconds=(), phases={}), tmp_path / "found.json")
    page = report(tmp_path / "found.json")
    assert page.drawings.keys() == {"plot-ceilings"}
    assert page.parts == ["ceilings", "timeline", "rules", "about"]


def test_the_headline_has_no_command(tmp_path: Path) -> None:
    """The reason for a missing verdict, and the cure of a verdict, are lines below."""
    reason = "Not judged: the GPU's kernels are hidden; run sudo sh -c 'modprobe nvidia'"
    write_diagnosis(make_diagnosis(measured=0.0, sentence=reason), tmp_path / "none.json")
    write_diagnosis(make_diagnosis(findings=(replace(READS, rule="storage_latency"),)), tmp_path / "found.json")
    for name in ("none", "found"):
        report(tmp_path / f"{name}.json")
        html = (tmp_path / "report.html").read_text()
        (headline,) = re.findall(r"<h1>(.*?)</h1>", html)
        command = "modprobe nvidia" if name == "none" else '<pre class="command">data.reads_in_flight=64</pre>'
        assert command in html.partition("</h1>")[2] and len(headline) < 110
        assert not {"sudo", "modprobe", "data.reads_in_flight=64"} & set(headline.split())


def test_a_damaged_file_is_named_and_the_other_parts_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").write_text("{")
    (folder / "summary.json").write_text('{"a": ')
    (folder / ".hydra/config.yaml").write_text("a: [\n")
    page = report(folder)
    assert "plot-timeline" in page.drawings
    assert "doctor.json is not a file of imagenet-opt doctor" in page.text


def test_titles_of_page_and_figures_name_a_simulated_accelerator(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine", simulated="a10g")
    report(folder)
    html = (folder / "report.html").read_text()
    assert "<title>mine (simulated)</title>" in html
    for name in ("ceilings", "waterfall", "phases", "timeline", "histogram"):
        place = html.index(f'id="plot-{name}"')
        figure = html[html.rindex("<figure>", 0, place) : html.index("</script>", place)]
        assert "simulated" in figure, name


def test_an_hour_of_samples_stays_below_ten_megabytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    shutil.rmtree(folder / "timeline")
    write_timeline(folder, seconds=3600, num_cpus=64)
    report(folder)
    assert (folder / "report.html").stat().st_size < 10e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder or file"),
        ([], "required: RUN"),
        ([".", "--baseline", "nowhere"], "--baseline nowhere: there is no such"),
        ([".", "--price-per-hour", "-1"], "--price-per-hour -1.0 is no price"),
        ([".", "--price-per-hour", "nan"], "--price-per-hour nan is no price"),
        ([".", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_unsuitable_arguments_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(arguments)


def test_an_empty_run_folder_and_an_unwritable_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds nothing to report; expected a folder that train.py wrote"):
        run("report", [str(tmp_path)])
    write_diagnosis(make_diagnosis(), tmp_path / "doctor.json")
    with pytest.raises(ConfigError, match=r"cannot write .*; choose another file with --out"):
        run("report", [str(tmp_path), "--out", str(tmp_path / "none" / "a.html")])
