"""The report page in a real browser: hostile text and figures."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from tests.cli.reports import Page, report
from tests.doctor.diagnoses import write_run

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


@pytest.mark.slow
def test_a_browser_draws_every_figure_without_console_messages(evil: tuple[Path, Page], tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed (Debian: apt-get install chromium): figures are not drawn")
    profile, place = f"--user-data-dir={tmp_path / 'profile'}", (evil[0] / "report.html").absolute().as_uri()
    command = [CHROMIUM, *FLAGS, profile, "--dump-dom", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    drawn = Page(done.stdout)
    assert len(drawn.drawings) == 8
    assert all(drawn.drawings.values()), drawn.drawings
    assert "<title>owned</title>" not in done.stdout
