"""The report page in a real browser: hostile text, figures and zooming."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.telemetry.timeline import read_timeline
from tests.cli.reports import Page, report
from tests.doctor.diagnoses import write_run, write_timeline
from tests.report.recordings import recorded

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--enable-logging=stderr", "--virtual-time-budget=20000",
)  # fmt: skip
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    """The folder and the page of a run whose files hold HTML in every text."""
    folder = tmp_path_factory.mktemp("evil") / "a<script>b"
    finding = Finding(EVIL, True, EVIL, EVIL, (EVIL,), (EVIL,), 2.0)
    texts = {key: {EVIL: EVIL} for key in ("machine", "versions", "config")}
    values = texts | {"sentence": EVIL, "command": EVIL, "date": EVIL, "simulated": EVIL, "next_stage": EVIL}
    write_run(folder, findings=(finding,), phases={EVIL: 0.1}, unverified=EVIL, **values)
    (folder / ".hydra/config.yaml").write_text(f"data:\n  root: {json.dumps(EVIL)}\n")
    return folder, report(folder, "--baseline", folder)


def test_no_text_of_a_file_becomes_markup(evil: tuple[Path, Page]) -> None:
    folder, page = evil
    assert "owned" in page.text
    assert page.loads == ["data:,"]
    scripts = (folder / "report.html").read_text().split("<script")[1:]
    assert not any("document.title=" in script.partition("</script>")[0][:200] for script in scripts)


@pytest.fixture
def in_browser(tmp_path: Path) -> Callable[[Path], str]:
    """A function that opens a page and returns its HTML; fails if the page writes to the console."""
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed (Debian: apt-get install chromium): figures are not drawn")

    def opened(page: Path) -> str:
        profile, place = f"--user-data-dir={tmp_path / 'profile'}", page.absolute().as_uri()
        command = [CHROMIUM, *FLAGS, profile, "--dump-dom", place]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout

    return opened


@pytest.mark.slow
def test_a_browser_draws_every_figure_without_console_messages(
    evil: tuple[Path, Page], in_browser: Callable[[Path], str]
) -> None:
    html = in_browser(evil[0] / "report.html")
    drawn = Page(html)
    assert len(drawn.drawings) == 10
    assert all(drawn.drawings.values()), drawn.drawings
    assert "<title>owned</title>" not in html


ZOOM = """<script>
const drawn = [];
const steps = [{"xaxis4.range[0]": 1000, "xaxis4.range[1]": 1010}, {"xaxis.range": [0, 3600]}];
const zoomed = document.getElementById("plot-timeline");
zoomed.on("plotly_react", () => {
  const ranges = Object.keys(zoomed.layout).filter(key => key.startsWith("xaxis")).map(key => zoomed.layout[key].range);
  const points = Object.fromEntries(zoomed.data.map(trace => [trace.name, [...trace.x]]));
  const bands = zoomed.layout.shapes.filter(shape => shape.type === "rect").map(shape => shape.x0);
  drawn.push({ranges, points, bands, title: zoomed.layout.title.text, peak: Math.max(...zoomed.data.find(
    trace => trace.name === "read").y), cores: zoomed.data.find(trace => trace.type === "heatmap").z.length});
  steps.length ? Plotly.relayout(zoomed, steps.shift()) : document.body.append(
    Object.assign(document.createElement("pre"), {id: "drawn", textContent: JSON.stringify(drawn)}));
});
</script>"""


@pytest.mark.slow
def test_an_hour_that_is_zoomed_shows_every_sample(tmp_path: Path, in_browser: Callable[[Path], str]) -> None:
    folder = write_run(tmp_path / "mine")
    shutil.rmtree(folder / "timeline")
    write_timeline(folder, seconds=3600, num_cpus=4, peak_at=10_050)
    report(folder)
    page = folder / "report.html"
    page.write_text(page.read_text().replace("</body>", f"{ZOOM}</body>"))
    match = re.search(r'<pre id="drawn">(.*?)</pre>', in_browser(page), re.S)
    assert match is not None
    first, near, far = json.loads(match[1])
    assert first.pop("ranges")[0] == [0, pytest.approx(3599.9)], "the whole hour is drawn when the page opens"
    assert all(ends == [1000, 1010] for ends in near["ranges"]) and len(near["ranges"]) == 9, "the axes are linked"
    for name in ("workers", "read", "queue", "core, by number"):
        times = [x for x in near["points"][name] if 1000 <= x <= 1010]
        assert len(times) in (100, 101), name
    assert (near["title"], near["peak"], near["cores"]) == ("Every 100 ms", pytest.approx(777), 4)
    recording = read_timeline(folder / "timeline")
    waits = recording.spans("fetch") - recording.samples["unix_seconds"][0]
    assert near["bands"] == pytest.approx(waits[(waits[:, 1] >= 1000) & (waits[:, 0] <= 1010), 0], abs=1e-3)
    assert all(ends == [0, 3600] for ends in far.pop("ranges"))
    assert 3500 < len(far["points"]["read"]) <= 4000 and far["peak"] == pytest.approx(777)
    assert far["title"] == "Minimum and maximum per 1.8 s"
    assert len(far["bands"]) == 300
    assert first == far


ZOOM_ONCE = """<script>
const zoomed = document.getElementById("plot-timeline");
const axis = zoomed.data[0].xaxis.replace("x", "xaxis");
zoomed.on("plotly_react", () => document.body.append(`drawn from ${zoomed.layout[axis].range[0]}. `));
setTimeout(() => Plotly.relayout(zoomed, {[`${axis}.range[0]`]: 1, [`${axis}.range[1]`]: 2}), 1000);
</script>"""


@pytest.mark.slow
def test_a_timeline_without_events_can_be_zoomed(tmp_path: Path, in_browser: Callable[[Path], str]) -> None:
    folder = write_run(tmp_path / "mine")
    shutil.rmtree(folder / "timeline")
    recorded(folder, 100 + 0.1 * np.arange(50), queue_depth=np.ones(50))
    report(folder)
    page = folder / "report.html"
    page.write_text(page.read_text().replace("</body>", f"{ZOOM_ONCE}</body>"))
    assert "drawn from 0. drawn from 1. " in in_browser(page).rpartition("</script>")[2]
