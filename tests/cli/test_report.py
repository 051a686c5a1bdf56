"""One page of a run: all that is known, in a real browser, with whatever names and values a run has."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from imagenet_opt.cli.main import run
from imagenet_opt.cli.report import parse
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.diagnosis import Finding, write_diagnosis
from imagenet_opt.measure.report.page import PARTS
from tests.diagnoses import make_diagnosis, write_run, write_timeline

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
)
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;"


class Page(HTMLParser):
    """Texts outside scripts, tags that load something, ids of plots and how many drawings each holds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.drawings: dict[str, int] = {}
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._tag = tag
        self.loads += [value or "" for name, value in attrs if name in ("src", "srcset", "data")]
        self.loads += [found["href"] or "" for _ in (1,) if tag == "link"]
        if (found.get("id") or "").startswith("plot-"):
            self._plot = str(found["id"])
            self.drawings[self._plot] = 0
        if tag == "svg" and "main-svg" in (found.get("class") or ""):
            self.drawings[self._plot] += 1

    def handle_data(self, data: str) -> None:
        if self._tag not in ("script", "style"):
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def report(*arguments: object) -> Page:
    run("report", [str(argument) for argument in arguments])
    folder = Path(str(arguments[0]))
    return Page(((folder if folder.is_dir() else folder.parent) / "report.html").read_text())


def test_a_run_with_everything_has_every_part(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    page = report(folder, "--baseline", write_run(tmp_path / "before", measured=100.0), "--price-per-hour", "2")
    assert all(heading in page.text for heading in PARTS.values())
    expected = ("ceilings", "waterfall", "phases", "timeline", "metrics", "histogram", "workers", "overlay")
    assert {f"plot-{name}" for name in expected} <= page.drawings.keys()
    assert "The GPU waits for storage 72 % of the time" in page.text
    assert "0.83 it/s" in page.text and "3.02 it/s" in page.text
    assert f"${2 * 1_281_167 / 212 / 3600:.2f}" in page.text
    assert "data.reads_in_flight=64" in page.text and "sudo sh -c 'echo 4096" in page.text
    assert re.search(r"measured images/s 212 100 2\.12", page.text)
    assert page.loads == ["data:,"], "nothing is fetched"


def test_every_part_that_is_absent_says_what_makes_it(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"throughput/images_per_second": 212.0}))
    page = report(tmp_path)
    assert not page.drawings
    assert f"no doctor.json: imagenet-opt doctor ... --json {tmp_path}/doctor.json writes it" in page.text
    assert "no timeline: train.py records one, unless told '~callbacks.timeline'" in page.text
    assert "212" in page.text
    assert "nothing to compare with: add --baseline RUN" in page.text


def test_a_doctor_file_alone_is_enough(tmp_path: Path) -> None:
    write_diagnosis(make_diagnosis(curves={}, waterfall=(), step_seconds=(), phases={}), tmp_path / "found.json")
    page = report(tmp_path / "found.json")
    assert page.drawings.keys() == {"plot-ceilings"}
    assert page.text.count("the doctor measured nothing for this part") >= 2


def test_a_damaged_part_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").write_text("{")
    (folder / "summary.json").write_text('{"a": ')
    (folder / ".hydra/config.yaml").write_text("a: [\n")
    page = report(folder)
    assert "plot-timeline" in page.drawings
    assert "doctor.json is not a file of imagenet-opt doctor" in page.text


def test_a_simulated_accelerator_is_said_in_the_title_and_in_its_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine", simulated="a10g")
    report(folder)
    html = (folder / "report.html").read_text()
    assert "<title>mine (simulated)</title>" in html
    for name in ("ceilings", "waterfall", "phases", "timeline", "histogram"):
        figure = html[html.index(f'id="plot-{name}"') :].partition("</script>")[0]
        assert "simulated" in figure, name


def test_a_rehearsed_run_is_simulated_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").unlink()
    (folder / ".hydra/config.yaml").write_text("callbacks:\n  rehearsal:\n    name: a10g\n")
    page = report(folder)
    assert "mine (simulated)" in page.text and "simulated: a10g" in page.text


def test_an_hour_of_samples_stays_below_ten_megabytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    shutil.rmtree(folder / "timeline")
    write_timeline(folder, seconds=3600, num_cpus=64)
    report(folder)
    assert (folder / "report.html").stat().st_size < 10e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "RUN nowhere: there is no such folder or file"),
        ([], "required: RUN"),
        ([".", "--baseline", "nowhere"], "--baseline nowhere: there is no such"),
        ([".", "--price-per-hour", "-1"], "--price-per-hour -1.0 is no price"),
        ([".", "--price-per-hour", "nan"], "--price-per-hour nan is no price"),
        ([".", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(arguments)


def test_nothing_to_report_and_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds nothing to report; expected a folder that train.py wrote"):
        run("report", [str(tmp_path)])
    write_diagnosis(make_diagnosis(), tmp_path / "doctor.json")
    with pytest.raises(ConfigError, match=r"cannot write .*; choose another file with --out"):
        run("report", [str(tmp_path), "--out", str(tmp_path / "none" / "a.html")])


def evil_run(folder: Path) -> Path:
    """All that comes from files would like to be HTML."""
    finding = Finding(EVIL, True, EVIL, EVIL, (EVIL,), (EVIL,), 2.0)
    texts = {key: {EVIL: EVIL} for key in ("machine", "versions", "config")}
    given = texts | {"sentence": EVIL, "command": EVIL, "date": EVIL, "simulated": EVIL, "next_stage": EVIL}
    write_run(folder, findings=(finding,), phases={EVIL: 0.1}, facts={EVIL: 1.0}, **given)
    (folder / ".hydra/config.yaml").write_text(f"data:\n  root: {json.dumps(EVIL)}\n")
    return folder


def test_no_text_of_a_file_becomes_markup(tmp_path: Path) -> None:
    folder = evil_run(tmp_path / "a<script>b")
    page = report(folder, "--baseline", folder)
    assert "owned" in page.text
    assert page.loads == ["data:,"]
    scripts = (folder / "report.html").read_text().split("<script")[1:]
    assert not any("document.title=" in script.partition("</script>")[0][:200] for script in scripts)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")
def test_a_browser_draws_every_figure_without_a_complaint(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    folder = evil_run(tmp_path / "a<script>b")
    report(folder, "--baseline", folder)
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    page = (folder / "report.html").absolute().as_uri()
    done = subprocess.run(
        [CHROMIUM, *FLAGS, profile, "--dump-dom", page], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    drawn = Page(done.stdout)
    assert len(drawn.drawings) == 10
    assert all(drawn.drawings.values()), drawn.drawings
    assert "<title>owned</title>" not in done.stdout
