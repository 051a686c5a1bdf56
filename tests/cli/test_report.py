"""One page of a run: all that is known, in a real browser, with whatever names and values a run has."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.cli.main import run
from imagenet_opt.cli.report import parse
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.diagnosis_file import write_diagnosis
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.timeline import ChunkWriter
from imagenet_opt.report.page import PARTS
from tests.doctor.diagnoses import make_diagnosis, make_facts, write_run, write_timeline

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
        self.parts: list[str] = []
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._tag = tag
        self.parts += [str(found["id"]) for _ in (1,) if tag == "section"]
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


ORDER = (
    ("ceilings", "ceilings"), ("step", "waterfall"), ("step", "phases"), ("timeline", "timeline"),
    ("timeline", "metrics"), ("steps", "histogram"), ("curves", "workers"), ("curves", "reads_in_flight"),
    ("curves", "cached_share"), ("rules", None), ("baseline", "overlay"), ("about", None),
)  # fmt: skip
"""Parts, from the top, and the figures in them: first the verdict's proof, at last what only a second look needs."""


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


def test_the_parts_come_in_the_order_in_which_one_asks(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    page = report(folder, "--baseline", write_run(tmp_path / "before"))
    assert page.parts == list(dict.fromkeys(part for part, _ in ORDER)) == list(PARTS)
    assert list(page.drawings) == [f"plot-{figure}" for _, figure in ORDER if figure]
    html = (folder / "report.html").read_text()
    sections = {part: html.index(f'<section class="card" id="{part}"') for part in PARTS}
    for part, figure in ORDER:
        if figure:
            above = [name for name in PARTS if sections[name] < html.index(f'id="plot-{figure}"')]
            assert above[-1] == part, figure
    assert page.text.index("The GPU waits for storage") < page.text.index(PARTS["ceilings"])


def test_the_terminal_has_the_verdict_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "before", measured=100.0, simulated="a10g", cause="slow_decode")
    report(write_run(tmp_path / "mine"), "--baseline", before, "--price-per-hour", "2")
    said = capsys.readouterr().out
    assert "The GPU waits for storage 72 % of the time" in said.replace("\n", " ")
    for words in ("files one by one", "data.reads_in_flight=64", "confidence", "full run, files on storage"):
        assert words in said, words
    assert f"${2 * 1_281_167 / 212 / 3600:.2f} an epoch" in said
    assert said.count("3.02 it/s") == 1, "a rate is said once"
    assert "careful: the accelerators differ: mine has a real accelerator, before has a simulated a10g" in said
    assert re.search(r"cause +storage answers late +decoding takes the CPUs", said)
    assert said.splitlines()[-1].startswith("wrote ")


def test_without_a_doctor_the_terminal_has_the_runs_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").unlink()
    report(folder)
    said = capsys.readouterr().out
    assert re.search(r"it/s +0\.83", said) and re.search(r"images/s +212", said)
    assert "imagenet-opt doctor ... --json" in said


def test_a_baseline_shows_what_was_found_in_both(tmp_path: Path) -> None:
    machine = {"cpu": "AMD EPYC 7R32", "gpu": "NVIDIA H100", "usable CPUs": "8"}
    before = write_run(tmp_path / "before", sentence="It was slow.", machine=machine)
    page = report(write_run(tmp_path / "mine"), "--baseline", before)
    assert "Careful: gpu differs: mine has NVIDIA A10G, before has NVIDIA H100." in page.text
    assert "It was slow." in page.text
    assert "reads in flight fired; fixed, 3.10 times as fast" in page.text
    assert re.search(r"GPU alone 315\.3 315\.3 1\.00", page.text)


def test_what_the_doctor_saw_and_how_sure_it_is_stand_at_the_end(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "mine"))
    end = page.text[page.text.rindex(PARTS["about"]) :]
    for words in (
        "cold_evidence 200 of 200 files were dropped",
        "confidence high",
        "memory 31 GiB",
        "driver 580.95.05",
        "CUDA 13.0",
    ):
        assert words in end, words


def test_every_part_that_is_absent_says_what_makes_it(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"throughput/images_per_second": 212.0}))
    page = report(tmp_path)
    assert not page.drawings
    assert f"no doctor.json: to get a verdict, run imagenet-opt doctor ... --json {tmp_path}/doctor.json" in page.text
    assert "no timeline: train.py records a timeline unless it is switched off with '~callbacks.timeline'" in page.text
    assert "212" in page.text
    assert "no baseline; add one with --baseline RUN" in page.text


def test_a_doctor_file_alone_is_enough(tmp_path: Path) -> None:
    write_diagnosis(make_diagnosis(curves={}, waterfall=(), step_seconds=(), phases={}), tmp_path / "found.json")
    page = report(tmp_path / "found.json")
    assert page.drawings.keys() == {"plot-ceilings"}
    assert page.text.count("the doctor has no measurement for this part") >= 2


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


def test_a_run_without_a_verdict_ends_with_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "doctor.json").unlink()
    report(folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine"
    assert any(line.startswith("no verdict: no doctor.json: to get a verdict, run imagenet-opt") for line in lines[-4:])


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
    write_run(folder, findings=(finding,), phases={EVIL: 0.1}, facts=make_facts(cold_evidence=EVIL), **given)
    (folder / ".hydra/config.yaml").write_text(f"data:\n  root: {json.dumps(EVIL)}\n")
    return folder


def test_no_text_of_a_file_becomes_markup(tmp_path: Path) -> None:
    folder = evil_run(tmp_path / "a<script>b")
    page = report(folder, "--baseline", folder)
    assert "owned" in page.text
    assert page.loads == ["data:,"]
    scripts = (folder / "report.html").read_text().split("<script")[1:]
    assert not any("document.title=" in script.partition("</script>")[0][:200] for script in scripts)


@pytest.fixture
def in_browser(tmp_path: Path) -> Callable[[Path], str]:
    """What a page becomes in a browser, in which it says nothing on the console."""
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed (Debian: apt-get install chromium): figures are not drawn")

    def opened(page: Path) -> str:
        profile, place = f"--user-data-dir={tmp_path / 'profile'}", page.absolute().as_uri()
        command = [CHROMIUM, *FLAGS, profile, "--dump-dom", place]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout

    return opened


def test_a_browser_draws_every_figure_without_a_complaint(tmp_path: Path, in_browser: Callable[[Path], str]) -> None:
    folder = evil_run(tmp_path / "a<script>b")
    report(folder, "--baseline", folder)
    html = in_browser(folder / "report.html")
    drawn = Page(html)
    assert len(drawn.drawings) == 10
    assert all(drawn.drawings.values()), drawn.drawings
    assert "<title>owned</title>" not in html


ZOOM = """<script>
const drawn = [];
const steps = [{"xaxis4.range[0]": 1000, "xaxis4.range[1]": 1010}, {"xaxis.range": [0, 3600]}];
const zoomed = document.getElementById("plot-timeline");
const next = () => steps.length ? Plotly.relayout(zoomed, steps.shift()) : document.body.append(
  Object.assign(document.createElement("pre"), {id: "drawn", textContent: JSON.stringify(drawn)}));
zoomed.on("plotly_react", () => {
  const ranges = Object.keys(zoomed.layout).filter(key => key.startsWith("xaxis")).map(key => zoomed.layout[key].range);
  const points = Object.fromEntries(zoomed.data.map(trace => [trace.name, [...trace.x]]));
  const bands = zoomed.layout.shapes.filter(shape => shape.type === "rect").map(shape => shape.x0);
  drawn.push({ranges, points, bands, title: zoomed.layout.title.text, peak: Math.max(...zoomed.data.find(
    trace => trace.name === "read").y), cores: zoomed.data.find(trace => trace.type === "heatmap").z.length});
  next();
});
next();
</script>"""


def test_an_hour_that_is_zoomed_shows_every_sample(tmp_path: Path, in_browser: Callable[[Path], str]) -> None:
    folder = write_run(tmp_path / "mine")
    shutil.rmtree(folder / "timeline")
    write_timeline(folder, seconds=3600, num_cpus=4, peak_at=10_050)
    report(folder)
    page = folder / "report.html"
    page.write_text(page.read_text().replace("</body>", f"{ZOOM}</body>"))
    found = re.search(r'<pre id="drawn">(.*?)</pre>', in_browser(page), re.S)
    assert found is not None
    near, far = json.loads(found[1])
    assert all(ends == [1000, 1010] for ends in near["ranges"]) and len(near["ranges"]) == 9, "the axes are linked"
    for name in ("workers", "read", "queue", "each core, %"):
        times = [x for x in near["points"][name] if 1000 <= x <= 1010]
        assert len(times) in (100, 101), name
    assert (near["title"], near["peak"], near["cores"]) == ("Every 100 ms", pytest.approx(777), 4)
    assert near["bands"] and all(990 < begin < 1010 for begin in near["bands"])
    assert all(ends == [0, 3600] for ends in far["ranges"])
    assert 3500 < len(far["points"]["read"]) <= 4000 and far["peak"] == pytest.approx(777)
    assert far["title"] == "Minimum and maximum of every 1.8 s"
    assert len(far["bands"]) == 300


ZOOM_ONCE = """<script>
const zoomed = document.getElementById("plot-timeline");
zoomed.on("plotly_react", () => document.body.append("drawn again"));
const axis = zoomed.data[0].xaxis.replace("x", "xaxis");
Plotly.relayout(zoomed, {[`${axis}.range[0]`]: 1, [`${axis}.range[1]`]: 2});
</script>"""


def test_a_timeline_without_events_can_be_zoomed(tmp_path: Path, in_browser: Callable[[Path], str]) -> None:
    folder = write_run(tmp_path / "mine")
    shutil.rmtree(folder / "timeline")
    writer = ChunkWriter(folder / "timeline")
    writer.add("samples", {"unix_seconds": 100 + 0.1 * np.arange(50), "queue_depth": np.ones(50)})
    writer.flush()
    report(folder)
    page = folder / "report.html"
    page.write_text(page.read_text().replace("</body>", f"{ZOOM_ONCE}</body>"))
    assert "drawn again" in in_browser(page).rpartition("</script>")[2]
