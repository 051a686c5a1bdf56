"""The jobs of a sweep in its table, its CSV and its page."""

import csv
import json
from pathlib import Path

import pytest

from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.results import print_results, write_csv, write_page
from imagenet_opt.sweep.rows import Row, best, collect_rows, outcome


def row(job: int, batch_size: str, seed: int, rate: float, status: str = "ok", **summary: float) -> Row:
    return Row(
        job=job,
        overrides=[f"seed={seed}", "+data.root=/my data", f"data.batch_size={batch_size}"],
        status=status,  # type: ignore[arg-type]
        error=None if status == "ok" else "MemoryError",
        seconds=60.0,
        exit_code=0,
        summary={IMAGES_PER_SECOND: rate} | summary,
    )


def test_the_best_job_is_the_fastest_with_enough_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = {"loader/num_workers": 2, "loader/prefetch_factor": 4}
    steps = [(200, 100.0), (3, 900.0), (35, 300.0)]
    rows = [row(job, "64", 0, rate, steps=num, **loader) for job, (num, rate) in enumerate(steps)]
    rows.append(row(3, "128", 0, 5000.0, status="failed"))
    assert [outcome(row) for row in rows] == ["ok", *["ok, too few steps to trust"] * 2, "failed"]
    assert [found and found.job for found in (best(rows), best(rows[1:]), best(rows[3:]))] == [0, 1, None]
    print_results(rows, tmp_path)
    shown = capsys.readouterr().out
    assert "raise trainer.max_steps to at least 36" in shown and "Job 3: MemoryError" in shown
    assert "seed" not in shown.partition("\u2500")[0], "only what varies is a column"
    write_csv(rows, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [line["loader/num_workers"] for line in csv.DictReader(file)] == ["2", "2", "2", ""]


def test_damaged_files_of_a_job_cost_its_numbers_or_its_row(tmp_path: Path) -> None:
    outcome = {"status": "ok", "error": None, "seconds": 1.0, "exit_code": 0}
    for job in range(3):
        (tmp_path / str(job)).mkdir()
        (tmp_path / str(job) / "job.json").write_text(json.dumps({"job": job, "overrides": ["a=1"], **outcome}))
    (tmp_path / "1/summary.json").write_text('{"throughput/images_per')  # died while writing
    (tmp_path / "2/job.json").write_text("{")
    assert [(row.job, row.summary) for row in collect_rows(tmp_path)] == [(0, {}), (1, {})]


def test_the_page_has_the_overrides_of_the_fastest(tmp_path: Path) -> None:
    write_page([row(job, size, 0, rate) for job, (size, rate) in enumerate([("64", 90.0), ("128", 99.0)])], tmp_path)
    assert '<pre class="command">data.batch_size=128</pre>' in (tmp_path / "sweep.html").read_text()
