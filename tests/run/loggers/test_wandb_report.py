"""A page in the W&B run of a run folder, offline."""

from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.run.loggers.wandb_logger import log_report
from tests.run.loggers.test_wandb_logger import log_a_run
from tests.run.loggers.test_wandb_rows import inspected

TRAIN = """
import sys
from imagenet_opt.run.loggers.wandb_logger import build_wandb, finish
logger = build_wandb(folder=sys.argv[1], project="p")
for step in (0, 7):
    logger.log_metrics({"train/loss": 1.0}, step=step)
logger.finalize("success")
finish(logger, exit_code=0)
"""
REPORT = """
import sys
from pathlib import Path
from imagenet_opt.run.loggers.wandb_logger import log_report
folder = Path(sys.argv[1])
print(log_report(folder, folder / "report.html", project="p"))
"""


@pytest.mark.slow
def test_the_page_becomes_a_row_of_the_same_run_after_its_last(tmp_path: Path) -> None:
    log_a_run(tmp_path, TRAIN)
    (tmp_path / "report.html").write_text("<p>why</p>")
    said = log_a_run(tmp_path, REPORT)[-1]
    run_id = (tmp_path / "wandb_id.txt").read_text().strip()
    assert f"logged as report in W&B's run {run_id}; wandb sync " in said
    folder = Path(said.split("wandb sync ")[1].removesuffix(" sends it"))
    (page,) = folder.glob("files/media/html/*.html")
    assert page.read_text() == "<p>why</p>"
    rows = inspected(folder / f"run-{run_id}.wandb")
    assert '"_step":8,' in rows and '"report._type":"html-file"' in rows


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no wandb_id.txt"):
        log_report(tmp_path, tmp_path / "report.html", project="p")
