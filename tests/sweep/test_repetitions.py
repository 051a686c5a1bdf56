"""Jobs of a sweep that differ only in their seed are repetitions of one setting."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from imagenet_opt.measure.stats.paired_ratios import paired_ratios
from imagenet_opt.sweep.page import write_page
from imagenet_opt.sweep.repetitions import Repetitions, repetitions
from imagenet_opt.sweep.rows import Row
from imagenet_opt.sweep.table import print_table
from imagenet_opt.training.summary_file import IMAGES_PER_SECOND

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


def compared(rows: list[Row]) -> Repetitions:
    found = repetitions(rows)
    assert isinstance(found, Repetitions)
    return found


def test_settings_are_compared_with_the_fastest_over_the_seeds() -> None:
    found = compared(sweep(SEED_FIRST))
    assert found.rates == {f"data.batch_size={size}": rates for size, rates in RATES.items()}
    fastest, slow, near = found.table.rows
    assert found.fastest == fastest[0] == "data.batch_size=64" and fastest[2:] == (None, None, "the fastest")
    of_all_pairs = paired_ratios(RATES, [("128", "64"), ("256", "64")], num_comparisons=3)
    assert [found.ratios[f"data.batch_size={size}"] for size in ("128", "256")] == of_all_pairs
    assert slow[2] == pytest.approx(0.801, abs=1e-3) and slow[-1] == "slower"
    assert str(near[-1]).startswith("undecided, about ") and str(near[-1]).endswith(" min more")
    assert found.finding == (
        "data.batch_size=64 had the most images/s of 3 settings, 100 in 4 jobs; the others: 1 slower, 1 undecided."
    )
    (note,) = found.table.notes
    assert "more seeds after the present ones, and the same hydra.sweep.dir" in note


def test_the_time_until_a_decision_is_that_of_all_jobs() -> None:
    """A sweep with more seeds runs the decided settings too."""
    rows = sweep(SEED_FIRST)
    assert str(compared(rows).table.rows[2][-1]).endswith("min more")
    for each in rows:
        if each["parameters"]["data.batch_size"] == "128":
            each["seconds"] = 600.0
    assert str(compared(rows).table.rows[2][-1]).endswith("h more")


def test_settings_that_do_not_take_turns_are_told_to() -> None:
    (note,) = compared(sweep([(seed, size) for size in RATES for seed in range(4)])).table.notes
    assert "With seed= before the other overrides, and another hydra.sweep.dir, settings take turns" in note


def test_jobs_that_failed_or_were_short_or_interrupted_do_not_count() -> None:
    rows = sweep(SEED_FIRST)
    rows[4] = row(4, "128", 1, 80.0, status="failed")
    rows[11] = row(11, "256", 3, 80.0, status="interrupted")
    assert compared(rows).rates["data.batch_size=256"] == [101.0, 105.0], "the seeds that all settings have"
    for job in (1, 7):
        rows[job] = row(job, "128", job // 3, 80.0, steps=3)
    found = compared(rows)
    assert list(found.rates) == ["data.batch_size=64", "data.batch_size=256"]
    assert found.table.notes[0].endswith("for lack of two jobs with a reliable speed: data.batch_size=128.")
    for rate in (0.0, float("inf")):
        rows[0] = row(0, "64", 0, rate)
        assert compared(rows).rates["data.batch_size=64"] == [104.0, 101.0]


def test_what_cannot_be_compared_has_a_reason() -> None:
    rows = sweep(SEED_FIRST)
    for too_few in (rows[:4], rows[::3]):
        assert "needs two settings that have a reliable speed with the same two seeds" in str(repetitions(too_few))
    twice = [*rows, row(12, "64", 0, 50.0)]
    assert repetitions(twice) == "Settings are not compared: data.batch_size=64 ran twice with seed=0."
    assert str(repetitions(sweep([(0, size) for size in RATES]))).startswith("Each job ran once")


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
