"""Jobs of a sweep that differ only in their seed are repetitions of one setting."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from imagenet_opt.measure.stats.block_ratios import block_ratios
from imagenet_opt.sweep.page import write_page
from imagenet_opt.sweep.repetitions import repetitions
from imagenet_opt.sweep.rows import Row
from imagenet_opt.sweep.table import print_table
from imagenet_opt.training.summary_file import IMAGES_PER_SECOND

RATES = {"64": [100.0, 104.0, 101.0, 97.0], "128": [80.0, 83.0, 81.0, 78.0], "256": [101.0, 97.0, 105.0, 99.0]}


def row(job: int, batch_size: str, seed: int, rate: float, status: str = "ok", **summary: float) -> Row:
    parameters = {"seed": str(seed), "data.root": "/data", "data.batch_size": batch_size}
    found = {IMAGES_PER_SECOND: rate} | summary
    return Row(job=job, parameters=parameters, status=status, error=None, seconds=60.0, exit_code=0, summary=found)


def sweep(order: Sequence[tuple[int, str]]) -> list[Row]:
    return [row(job, size, seed, RATES[size][seed]) for job, (seed, size) in enumerate(order)]


SEED_FIRST = list(product(range(4), RATES))


def test_settings_are_compared_with_the_fastest_over_the_seeds() -> None:
    found = repetitions(sweep(SEED_FIRST))
    assert found is not None and found.rates == {f"data.batch_size={size}": rates for size, rates in RATES.items()}
    table = found.table()
    fastest, slow, near = table.rows
    assert found.fastest == "data.batch_size=64" and fastest == (found.fastest, 100.5, None, None, "the fastest")
    of_all_pairs = block_ratios(RATES, [("128", "64"), ("256", "64")], num_comparisons=3)
    assert [found.ratios[f"data.batch_size={size}"] for size in ("128", "256")] == of_all_pairs
    assert slow[2] == pytest.approx(0.801, abs=1e-3) and slow[-1] == "slower"
    assert str(near[-1]).startswith("undecided, about ") and str(near[-1]).endswith(" min more")
    assert table.finding.endswith("with 100 images/s in 4 jobs; slower for certain: 1 of the other 2.")
    (note,) = table.notes
    assert "more seeds and the same hydra.sweep.dir" in note


def test_settings_that_do_not_take_turns_are_told_to() -> None:
    found = repetitions(sweep([(seed, size) for size in RATES for seed in range(4)]))
    assert found is not None and "type seed= before the other overrides" in found.table().notes[-1]


def test_a_setting_with_a_failed_or_short_job_is_left_out() -> None:
    rows = sweep(SEED_FIRST)
    rows[4] = row(4, "128", 1, 80.0, status="failed")
    found = repetitions(rows)
    assert found is not None and list(found.rates) == ["data.batch_size=64", "data.batch_size=256"]
    rows[5] = row(5, "256", 1, 80.0, steps=3)
    assert repetitions(rows) is None


def test_a_sweep_that_still_runs_has_the_seeds_of_all_settings() -> None:
    rows = sweep(SEED_FIRST)
    assert repetitions(rows[:5]) is None
    found = repetitions(rows[:8])
    assert found is not None and {len(rates) for rates in found.rates.values()} == {2}


def test_without_several_seeds_and_settings_nothing_is_compared() -> None:
    assert repetitions(sweep([(0, size) for size in RATES])) is None
    assert repetitions(sweep([(seed, "64") for seed in range(4)])) is None


def test_the_page_and_the_terminal_show_settings_instead_of_single_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sweep(SEED_FIRST)
    print_table(rows, tmp_path)
    shown = capsys.readouterr().out
    assert "data.batch_size=64 was the fastest of 3 settings" in shown and "Each job ran once" not in shown
    write_page(rows, tmp_path)
    page = (tmp_path / "sweep.html").read_text()
    assert '<pre class="command">data.batch_size=64</pre>' in page and ">slower</td>" in page
    rows[4] = row(4, "128", 1, 80.0, status="failed")
    write_page(rows, tmp_path)
    assert "slower for certain: 0 of the other 1; 1 of 12 jobs did not finish." in (tmp_path / "sweep.html").read_text()
