"""The jobs of a sweep in its tables, and settings that are compared by speed and accuracy over their repeats."""

import csv
import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean, stdev

import pytest

from imagenet_opt.display.table import Cell, Table, ratio_interval
from imagenet_opt.measure.stats.verdict import paired_ratios
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.results import print_results, tables_of, write_csv
from imagenet_opt.sweep.rows import SweepRow, collect_rows, outcome, speed
from imagenet_opt.sweep.settings import SPEED, compared

RATES = {"64": [100.0, 104.0, 101.0, 97.0], "128": [80.0, 83.0, 81.0, 78.0], "256": [101.0, 97.0, 105.0, 99.0]}
SEED_FIRST = list(product(range(4), RATES))


def row(job: int, batch_size: str, seed: int, rate: float, status: str = "ok", **summary: float) -> SweepRow:
    return SweepRow(
        job=job,
        overrides=[f"seed={seed}", "+data.root=/my data", f"data.batch_size={batch_size}"],
        status=status,  # type: ignore[arg-type]
        error=None if status == "ok" else "MemoryError",
        seconds=60.0,
        exit_code=0,
        summary={IMAGES_PER_SECOND: rate} | summary,
    )


def sweep(order: Sequence[tuple[int, str]]) -> list[SweepRow]:
    return [row(job, size, seed, RATES[size][seed]) for job, (seed, size) in enumerate(order)]


def settings(rows: list[SweepRow]) -> Table:
    found = compared(rows, SPEED)
    assert found is not None
    return found[0]


def test_settings_are_compared_with_the_fastest_over_the_seeds() -> None:
    table = settings(sweep(SEED_FIRST))
    fastest, near, slow = table.rows
    assert fastest[0] == "data.batch_size=64" and fastest[2:] == (None, None, "the fastest")
    of_all_pairs = paired_ratios(RATES, [("128", "64"), ("256", "64")], num_comparisons=3)
    assert [slow[2:4], near[2:4]] == [(ratio.ratio, ratio_interval(ratio)) for ratio in of_all_pairs]
    assert slow[2] == pytest.approx(0.801, abs=1e-3) and slow[-1] == "slower"
    assert str(near[-1]).startswith("undecided, about ")
    assert "data.batch_size=64" in table.finding and "1 undecided, 1 slower" in table.finding


def test_jobs_that_failed_or_were_short_or_interrupted_do_not_count() -> None:
    def means(rows: list[SweepRow]) -> dict[Cell, Cell]:
        return {cells[0]: cells[1] for cells in settings(rows).rows}

    rows = sweep(SEED_FIRST)
    rows[4] = row(4, "128", 1, 80.0, status="failed")
    rows[11] = row(11, "256", 3, 80.0, status="interrupted")
    assert means(rows)["data.batch_size=256"] == pytest.approx(geometric_mean([101.0, 105.0]))
    rows[1], rows[7] = (row(job, "128", job // 3, 80.0, steps=3) for job in (1, 7))
    assert list(means(rows)) == ["data.batch_size=64", "data.batch_size=256"]
    for rate in (0.0, math.inf):
        rows[0] = row(0, "64", 0, rate)
        assert means(rows)["data.batch_size=64"] == pytest.approx(geometric_mean([104.0, 101.0]))


@pytest.mark.parametrize("rows", [sweep(SEED_FIRST)[:4], sweep([(0, size) for size in RATES])])
def test_without_two_settings_and_two_seeds_nothing_is_compared(rows: list[SweepRow]) -> None:
    assert compared(rows, SPEED) is None
    (jobs,), chosen = tables_of(rows)
    fastest = max(rows, key=speed)
    assert f"Job {fastest.job} was the fastest of {len(rows)}" in jobs.finding and chosen == [fastest.overrides[2:]]


def test_the_best_job_is_the_fastest_with_enough_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = {"loader/num_workers": 2, "loader/prefetch_factor": 4}
    steps = [(200, 100.0, "64"), (3, 900.0, "128"), (35, 300.0, "256"), (200, 90.0, "512")]
    rows = [row(job, size, 0, rate, steps=num, **loader) for job, (num, rate, size) in enumerate(steps)]
    rows.append(row(4, "32", 0, 5000.0, status="failed"))
    assert [outcome(row) for row in rows] == ["ok", *["ok, too few steps for a speed"] * 2, "ok", "failed"]
    print_results(rows, tmp_path)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Job 0 was the fastest of 2, with 100 images/s" in shown and "seed=1,2,3,4" in shown
    assert "Job 4: MemoryError" in shown
    write_csv(rows, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [line["loader/num_workers"] for line in csv.DictReader(file)] == ["2", "2", "2", "2", ""]
    rows[2].overrides.append("trainer.max_steps=35")
    (jobs,), chosen = tables_of(rows[1:3])
    assert "fastest" not in jobs.finding and not chosen, "nothing is stated about the speed of short runs"


def of_rates(*jobs: tuple[str, int, str, float]) -> list[SweepRow]:
    """Jobs with a learning rate, a seed, a batch size and an accuracy."""
    rows = [row(job, size, seed, 100.0 + job, **{"val/acc1": acc1}) for job, (_, seed, size, acc1) in enumerate(jobs)]
    for each, (lr, *_) in zip(rows, jobs, strict=True):
        each.overrides.append(f"optimizer.lr={lr}")
    return rows


def test_accuracies_are_compared_over_seeds_and_learning_rates_by_nothing_else() -> None:
    """Student's quantile of 97.5 % with two degrees of freedom is 4.3027, in any printed table."""
    accuracies = {"0.1": (0.667, 0.444, 0.556), "1.0": (0.667, 0.333, 0.556), "9.0": (0.1, 0.0, 0.05)}
    rows = of_rates(*((lr, seed, "64", accuracies[lr][seed]) for seed in range(3) for lr in accuracies))
    (table, jobs), chosen = tables_of(rows)
    assert compared(rows, SPEED) is None and "fastest" not in jobs.finding and chosen == [["optimizer.lr=0.1"]]
    assert [cells[0] for cells in table.rows] == ["optimizer.lr=0.1", "optimizer.lr=1.0", "optimizer.lr=9.0"]
    assert [cells[-1] for cells in table.rows] == ["the best", "undecided", "worse"]
    assert table.rows[1][3] == pytest.approx(-11.1 / 3)
    reach = 4.3027 * stdev([66.7, 44.4, 55.6]) / math.sqrt(3)
    assert table.rows[0][2] == f"{fmean([66.7, 44.4, 55.6]) - reach:.1f}-{fmean([66.7, 44.4, 55.6]) + reach:.1f}"
    equal = of_rates(*((lr, seed, "64", seed / 10 + float(lr)) for seed in range(2) for lr in ("0.1", "0.5")))
    assert tables_of(equal)[0][0].rows[1][-1] == "undecided", "two equal differences have no scatter"
    (two, _), _ = tables_of([row for row in rows if "optimizer.lr=9.0" not in row.overrides])
    reach = 4.3027 * stdev([0, -11.1, 0]) / math.sqrt(3)
    assert two.rows[1][4] == f"{-3.7 - reach:+.1f} to {-3.7 + reach:+.1f}"


def test_damaged_files_of_a_job_cost_its_numbers_or_its_row(tmp_path: Path) -> None:
    outcome = {"status": "ok", "error": None, "seconds": 1.0, "exit_code": 0}
    for job in range(3):
        (tmp_path / str(job)).mkdir()
        (tmp_path / str(job) / "job.json").write_text(json.dumps({"job": job, "overrides": ["a=1"], **outcome}))
    (tmp_path / "1/record.json").write_text('{"throughput/images_per')  # died while writing
    (tmp_path / "2/job.json").write_text("{")
    assert [(row.job, row.summary) for row in collect_rows(tmp_path)] == [(0, {}), (1, {})]
