"""Each kind of page in a real browser, on a phone and on a desk: no text is cut or covers other text."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.cli.study import write_outputs
from imagenet_opt.display.table import Column, Plot, Series, Table
from imagenet_opt.report.page import render
from imagenet_opt.report.run_files import read_record
from tests.doctor.diagnoses import write_run
from tests.study.studies import small_request

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--enable-logging=stderr", "--virtual-time-budget=20000",
)  # fmt: skip
WIDTHS = (390, 1200)
FACTS: dict[str, Any] = {
    "date": "2026-03-02 10:12",
    "machine": {"cpu": "AMD EPYC 7R32", "gpu": None, "usable_cpus": 8},
    "versions": {"torch": "2.14.0", "lightning": "2.6.1"},
    "command": "imagenet-opt tune data.root=/fsx/imagenet/a/folder/with/a/long/name +experiment=aggressive",
}
PHASES = {f"callback WithALongName{number}": 0.04 for number in range(8)}


def report(folder: Path) -> str:
    run = write_run(folder / "run", seconds=20, phases={"fetch": 0.87} | PHASES, simulated="a10g")
    return render(read_record(run), read_record(write_run(folder / "before", seconds=20)))


def doctor(folder: Path) -> str:
    """Of a run without a verdict."""
    run = write_run(folder / "doctor", seconds=20, measured=0.0, sentence="Not judged: sudo sh -c 'sysctl ...' " * 9)
    return render(read_record(run / "doctor.json"))


def study(folder: Path) -> str:
    names = ("the start", "channels_last", "compile, mode max-autotune-no-cudagraphs", "GPU resize and normalise")
    rates = Series("network alone", names, (100.0, 120, 150, 130), (95.0, 115, 140, 120), (105.0, 125, 160, 140))
    ratios = Series("", names[1:], (1.2, 1.5, 0.9), (1.1, 1.4, 0.8), (1.3, 1.6, 1.0))
    plots = (
        Plot(
            "Speed with the step / without it; grey: no difference, hollow: undecided", "ratio", "", "ratios", (ratios,)
        ),
        Plot("Images per second, median and range", "", "images/s", "bars", (rates, rates)),
    )
    columns = (Column("step"), *(Column(f"column {number}") for number in range(9)))
    rows = tuple((name, *["100 to 120"] * 9) for name in names)
    table = Table("Steps", columns, rows, ("A note.",), plots, finding="The network alone is faster with compile.")
    (folder / "study").mkdir()
    write_outputs([table], small_request("ladder", folder / "study"), FACTS)
    return (folder / "study/study.html").read_text()


KINDS: tuple[Callable[[Path], str], ...] = (report, doctor, study)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What boxes.js reports of each page at each width; all pages are frames of one page, in one start of Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed (Debian: apt-get install chromium): pages are not drawn")
    folder = tmp_path_factory.mktemp("pages")
    boxes = Path(__file__).with_name("boxes.js").read_text()
    for kind in KINDS:
        text = kind(folder).replace("</body>", f"<script>{boxes}</script></body>")
        (folder / f"{kind.__name__}.html").write_text(text)
    frames = "".join(
        f'<iframe name="{kind.__name__} {width}" src="{kind.__name__}.html" width="{width}" height="900"></iframe>'
        for kind in KINDS for width in WIDTHS
    )  # fmt: skip
    page = folder / "all.html"
    page.write_text(
        f"<pre id=seen></pre><script>const seen = {{}}; onmessage = event => {{ seen[event.source.name] = event.data;"
        f"document.getElementById('seen').textContent = JSON.stringify(seen); }};</script>{frames}"
    )
    command = [CHROMIUM, *FLAGS, "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=180, check=True
    )
    match = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert match is not None, done.stderr
    return dict(json.loads(html.unescape(match[1])))


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_no_text_is_cut_or_covers_other_text(seen: dict[str, dict[str, Any]], kind: str, width: int) -> None:
    found = seen[f"{kind} {width}"]
    assert found["wrong"] == []
    assert found["num"] > 20 and found["drawn"] > 3, "texts of the page and of its figures were measured"
    assert found["top"] == ["H1", "FIGURE"], "a sentence, one chart, then the numbers"
    if found["narrowest"]:
        assert found["narrowest"] > 0.5 * width, "the names leave room for the bars"
