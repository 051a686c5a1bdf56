"""Jobs of a sweep that differ only in their seed are repetitions of one setting."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import pytest

from imagenet_opt.display.table import Cell, Table, ratio_cells
from imagenet_opt.measure.stats.paired_ratios import paired_ratios
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.page import write_page
from imagenet_opt.sweep.repetitions import repetitions
from imagenet_opt.sweep.rows import Row
from imagenet_opt.sweep.table import print_table

RATES = {"64": [100.0, 104.0, 101.0, 97.0], "128": [80.0, 83.0, 81.0, 78.0], "256": [101.0, 97.0, 105.0, 99.0]}
SEED_FIRST = list(product(range(4), RATES))


def row(job: int, batch_size: str, seed: int, rate: float, status: str = "ok", **summary: float) -> Row:
    overrides = [f"seed={seed}", "+data.root=/my data", f"data.batch_size={batch_size}"]
    parameters = {"seed": str(seed), "data.root": "/my data", "data.batch_size": batch_size}
    found = {IMAGES_PER_SECOND: rate} | summary
    return Row(
        job=job,
        overrides=overrides,
        parameters=parameters,
        status=status,
        error=None,
        seconds=60.0,
        exit_code=0,
        summary=found,
    )


def sweep(order: Sequence[tuple[int, str]]) -> list[Row]:
    return [row(job, size, seed, RATES[size][seed]) for job, (seed, size) in enumerate(order)]


def compared(rows: list[Row]) -> Table:
    table = repetitions(rows).table
    assert table is not None
    return table


def test_settings_are_compared_with_the_fastest_over_the_seeds() -> None:
    table = compared(sweep(SEED_FIRST))
    fastest, slow, near = table.rows
    assert fastest[0] == "data.batch_size=64" and fastest[2:] == (None, None, "the fastest")
    of_all_pairs = paired_ratios(RATES, [("128", "64"), ("256", "64")], num_comparisons=3)
    assert [slow[2:4], near[2:4]] == [ratio_cells(ratio)[:2] for ratio in of_all_pairs]
    assert slow[2] == pytest.approx(0.801, abs=1e-3) and slow[-1] == "slower"
    assert str(near[-1]).startswith("undecided, about ") and str(near[-1]).endswith(" min more")
    assert table.finding == (
        "data.batch_size=64 had the most images/s of 3 settings, 100 in 4 jobs; the others: 1 slower, 1 undecided."
    )
    assert "more seeds after the present ones, and the same hydra.sweep.dir" in table.notes[0]


def test_the_time_until_a_decision_is_that_of_all_jobs() -> None:
    """A sweep with more seeds runs the decided settings too."""
    rows = sweep(SEED_FIRST)
    for each in rows:
        if each["parameters"]["data.batch_size"] == "128":
            each["seconds"] = 600.0
    assert str(compared(rows).rows[2][-1]).endswith("h more")


def test_settings_that_do_not_take_turns_are_told_to() -> None:
    (note,) = compared(sweep([(seed, size) for size in RATES for seed in range(4)])).notes
    assert "With seed= before the other overrides" in note


def test_jobs_that_failed_or_were_short_or_interrupted_do_not_count() -> None:
    def means(rows: list[Row]) -> dict[Cell, Cell]:
        return {cells[0]: cells[1] for cells in compared(rows).rows}

    rows = sweep(SEED_FIRST)
    rows[4] = row(4, "128", 1, 80.0, status="failed")
    rows[11] = row(11, "256", 3, 80.0, status="interrupted")
    seeds_of_all = geometric_mean([101.0, 105.0])
    assert means(rows)["data.batch_size=256"] == pytest.approx(seeds_of_all)
    for job in (1, 7):
        rows[job] = row(job, "128", job // 3, 80.0, steps=3)
    assert list(means(rows)) == ["data.batch_size=64", "data.batch_size=256"]
    assert compared(rows).notes[0].endswith("for lack of two jobs with a reliable speed: data.batch_size=128.")
    for rate in (0.0, float("inf")):
        rows[0] = row(0, "64", 0, rate)
        assert means(rows)["data.batch_size=64"] == pytest.approx(geometric_mean([104.0, 101.0]))


def test_what_cannot_be_compared_has_a_reason() -> None:
    rows = sweep(SEED_FIRST)
    for few, words in (
        (rows[:4], "needs two settings that have a reliable speed with the same two seeds"),
        (rows[::3], "needs two settings"),
        ([*rows, row(12, "64", 0, 50.0)], "data.batch_size=64 ran twice with seed=0"),
        (sweep([(0, size) for size in RATES]), "Each job ran once"),
    ):
        found = repetitions(few)
        assert found.table is None and len(found.best) == 1 and words in found.sentence


def test_the_page_and_the_terminal_show_settings_instead_of_single_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sweep(SEED_FIRST)
    print_table(rows, tmp_path)
    shown = capsys.readouterr().out
    assert "data.batch_size=64 had the most images/s of 3 settings" in shown and "Each job ran once" not in shown
    write_page(rows, tmp_path)
    page = (tmp_path / "sweep.html").read_text()
    assert '<pre class="command">data.batch_size=64</pre>' in page and ">slower</td>" in page
    assert page.count('<tr class="best">') == 4, "the jobs of the fastest setting, not the fastest job"
    assert "Images per second by data.batch_size" in page
    print_table(rows[:4], tmp_path)
    assert "was the fastest. Settings are not compared: this needs two settings" in capsys.readouterr().out


def test_the_overrides_of_the_fastest_job_can_be_pasted(tmp_path: Path) -> None:
    rows = [row(job, size, 0, rate) for job, (size, rate) in enumerate([("64", 90.0), ("128", 100.0)])]
    rows[0]["parameters"]["data.root"] = "/other"
    write_page(rows, tmp_path)
    page = (tmp_path / "sweep.html").read_text()
    assert '<pre class="command">&#39;+data.root=/my data&#39; data.batch_size=128</pre>' in page
