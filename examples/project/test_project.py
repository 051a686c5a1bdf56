"""Trains a few steps: pytest"""

import csv
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_a_run_logs_the_gradient_norm(tmp_path: Path) -> None:
    overrides = ["experiment=mine", "trainer.max_steps=4", "trainer.log_every_n_steps=2", f"hydra.run.dir={tmp_path}"]
    subprocess.run([sys.executable, HERE / "train.py", *overrides], check=True)
    rows = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    assert any(float(row["train/gradient_norm"] or 0) > 0 for row in rows)
