"""Makes docs/doctor.svg and docs/doctor-page.png from a real examination of slow storage with a simulated GPU.

python -m suites.docs.pictures SAMPLE MOUNT FOLDER
python -m suites.docs.pictures --report RUN

RUN: folder of a run with a doctor.json; docs/report.png, the upper part of its report, is made instead.

SAMPLE: a folder with a folder of JPEGs for each class. MOUNT: a new folder that shows SAMPLE at 24 MB a second (FUSE).
FOLDER: gets doctor.json, or has one, which is then drawn as it is. Needs Chromium for the page.
"""

import argparse
import io
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from imagenet_opt.doctor.diagnosis_file import read_diagnosis
from imagenet_opt.doctor.terminal_view import verdict_panel
from suites.doctor.slow_mount import slow_mount
from suites.faults.flaky_folder import tell

DOCS = Path(__file__).parents[2] / "docs"
BYTES_PER_SECOND = 24e6
WIDTH = 96
"""Columns of the terminal in the picture."""
PAGE = (1000, 1150)
"""Width and height of the picture of the page, in pixels."""
REPORT = (1000, 1960)
"""The same of a run's report: as far as its timeline."""
CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--hide-scrollbars", "--virtual-time-budget=15000",
)  # fmt: skip


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("sample", "mount", "folder"):
        parser.add_argument(name, type=Path, nargs="?")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(argv)
    if options.report is not None:
        run("report", ".", cwd=options.report)
        return photograph(options.report / "report.html", REPORT, DOCS / "report.png")
    if options.folder is None:
        parser.error("SAMPLE, MOUNT and FOLDER are needed, or --report RUN")
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "doctor.json").exists():
        examine(options.sample.resolve(), options.mount, options.folder)
    draw_verdict(options.folder / "doctor.json", DOCS / "doctor.svg")
    draw_page(options.folder, DOCS / "doctor-page.png")


def examine(sample: Path, mount: Path, folder: Path) -> None:
    """Write folder/doctor.json; the terminal's output goes to folder/doctor.txt. The folder `mount` is removed."""
    with slow_mount(sample, mount) as control, (folder / "doctor.txt").open("w") as output:
        tell(control, bytes_per_second=BYTES_PER_SECOND)
        words = ["rehearse=a10g", f"data.root={mount}", "data.train_folder=.", "data.val_folder=.", "--budget", "90s"]
        run("doctor", *words, "--json", "doctor.json", cwd=folder, stdout=output)
    mount.rmdir()
    mount.with_suffix(".json").unlink()


def draw_verdict(file: Path, picture: Path) -> None:
    """The first part of what the doctor prints, as SVG."""
    diagnosis = read_diagnosis(file)
    console = Console(record=True, width=WIDTH, markup=False, highlight=False, file=io.StringIO())
    typed = diagnosis.measurements.command.partition(" --json")[0]
    console.print(f"$ {typed}", verdict_panel(diagnosis))
    picture.write_text(console.export_svg(title="imagenet-opt doctor", unique_id="doctor"))


def draw_page(folder: Path, picture: Path) -> None:
    """The top of the report page of folder/doctor.json, as PNG."""
    run("report", "doctor.json", "--out", "doctor.html", cwd=folder)
    photograph(folder / "doctor.html", PAGE, picture)


def photograph(page: Path, shape: tuple[int, int], picture: Path) -> None:
    """The top of a page as PNG. shape: width and height in pixels."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium is installed (Debian: apt-get install chromium); the page was not drawn")
    size = f"--window-size={shape[0]},{shape[1]}"
    command = [chromium, *CHROMIUM_FLAGS, size, f"--screenshot={picture}", page.absolute().as_uri()]
    subprocess.run(command, check=True)


def run(*words: str, cwd: Path, stdout: io.TextIOBase | None = None) -> None:
    subprocess.run([sys.executable, "-m", "imagenet_opt.cli.main", *words], cwd=cwd, stdout=stdout, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
