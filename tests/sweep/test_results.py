"""The jobs of a sweep in its tables, and settings that are compared over several seeds."""

import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import pytest

from imagenet_opt.display.table import Cell, Table, ratio_interval
from imagenet_opt.measure.stats.verdict import paired_ratios
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.results import compared, print_results, tables_of, write_csv, write_page
from imagenet_opt.sweep.rows import Row, best, collect_rows, outcome

RATES = {"64": [100.0, 104.0, 101.0, 97.0], "128": [80.0, 83.0, 81.0, 78.0], "256": [101.0, 97.0, 105.0, 99.0]}
SEED_FIRST = list(product(range(4), RATES))


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


def sweep(order: Sequence[tuple[int, str]]) -> list[Row]:
    return [row(job, size, seed, RATES[size][seed]) for job, (seed, size) in enumerate(order)]


def settings(rows: list[Row]) -> Table:
    found = compared(rows)
    assert found is not None
    return found[0]


def test_settings_are_compared_with_the_fastest_over_the_seeds() -> None:
    table = settings(sweep(SEED_FIRST))
    fastest, slow, near = table.rows
    assert fastest[0] == "data.batch_size=64" and fastest[2:] == (None, None, "the fastest")
    of_all_pairs = paired_ratios(RATES, [("128", "64"), ("256", "64")], num_comparisons=3)
    assert [slow[2:4], near[2:4]] == [(ratio.ratio, ratio_interval(ratio)) for ratio in of_all_pairs]
    assert slow[2] == pytest.approx(0.801, abs=1e-3) and slow[-1] == "slower"
    assert str(near[-1]).startswith("undecided, about ")
    assert "data.batch_size=64" in table.finding and "1 slower, 1 undecided" in table.finding


def test_jobs_that_failed_or_were_short_or_interrupted_do_not_count() -> None:
    def means(rows: list[Row]) -> dict[Cell, Cell]:
        return {cells[0]: cells[1] for cells in settings(rows).rows}

    rows = sweep(SEED_FIRST)
    rows[4] = row(4, "128", 1, 80.0, status="failed")
    rows[11] = row(11, "256", 3, 80.0, status="interrupted")
    assert means(rows)["data.batch_size=256"] == pytest.approx(geometric_mean([101.0, 105.0]))
    for job in (1, 7):
        rows[job] = row(job, "128", job // 3, 80.0, steps=3)
    assert list(means(rows)) == ["data.batch_size=64", "data.batch_size=256"]
    for rate in (0.0, float("inf")):
        rows[0] = row(0, "64", 0, rate)
        assert means(rows)["data.batch_size=64"] == pytest.approx(geometric_mean([104.0, 101.0]))


@pytest.mark.parametrize("rows", [sweep(SEED_FIRST)[:4], sweep(SEED_FIRST)[::3], sweep([(0, size) for size in RATES])])
def test_without_two_settings_and_two_seeds_nothing_is_compared(rows: list[Row]) -> None:
    assert compared(rows) is None
    (jobs,), fastest = tables_of(rows)
    assert fastest is not None and f"Job {fastest.job} was the fastest" in jobs.finding and "seed=" in jobs.finding


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


def test_the_page_has_both_tables_and_the_overrides_of_the_fastest(tmp_path: Path) -> None:
    write_page([row(job, size, 0, rate) for job, (size, rate) in enumerate([("64", 90.0), ("128", 99.0)])], tmp_path)
    assert '<pre class="command">data.batch_size=128</pre>' in (tmp_path / "sweep.html").read_text()
    write_page(sweep(SEED_FIRST), tmp_path)
    page = (tmp_path / "sweep.html").read_text()
    assert (
        '<pre class="command">data.batch_size=64</pre>' in page and ">slower</td>" in page and "<h2>jobs</h2>" in page
    )
