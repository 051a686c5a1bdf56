"""The result of a benchmark: its tables, its page and its JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.turn import CEILING, OWN, REGION, WORKER, BenchJob, BenchTurn
from imagenet_opt.compare.gain import Gain, Pair, gains
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.table import Cell, Column, Plot, Table, how_to_decide, interval, series
from imagenet_opt.display.terminal_table import about_texts
from imagenet_opt.measure.stats.intervals import median_interval

_LEAST_SECONDS = 1.0
"""In shorter turns, the first and last batches determine the rate."""
_STAGES = {
    "loader/read_seconds": ("waits for bytes, ms", 1e3),
    "loader/decode_seconds": ("computes (decodes, resizes), ms", 1e3),
    "loader/cpu_wait_seconds": ("waits for a CPU, ms", 1e3),
    "loader/copy_seconds": ("copy to the GPU, ms", 1e3),
    "loader/mb_read": ("encoded bytes, MB", 1),
    "loader/reads_in_flight": ("reads in flight", 1),
    "loader/queue_depth": ("batches ready when one is taken", 1),
    "loader/skipped": ("bad files so far", 1),
}
"""Metric: its label in the table, and the factor to the label's unit."""
_OURS = {
    WORKER: "uint8 images of one size, resized by the workers",
    REGION: "crops of their original size, for the GPU to resize",
    CEILING: "crops decoded from memory; no file is read and no batch is sent to the training process",
}


def tables_of(rounds: Rounds[BenchTurn], job: BenchJob, rows: Sequence[str]) -> list[Table]:
    """Rates of all rows, measured or not; stages of our rows; ratios of our rows to the limit and to every peer."""
    turns = {row: rounds.complete[row] for row in rows if row in rounds.complete}
    compared = _gains(rounds, turns)
    tables = (_rates(rounds, turns, job, rows, compared), _stages(turns), _ratios(compared))
    return [table for table in tables if table.rows]


def _gains(rounds: Rounds[BenchTurn], turns: dict[str, list[BenchTurn]]) -> dict[Pair, Gain]:
    rates = {row: [turn.images_per_second for turn in each] for row, each in turns.items()}
    ours = [row for row in OWN if row in turns]
    pairs = [(own, row) for own in ours for row in turns if row in PEERS or (own, row) == (REGION, CEILING)]
    return gains(rates, pairs, round_seconds=rounds.seconds / max([1, *map(len, rates.values())]))


def _rates(
    rounds: Rounds[BenchTurn],
    turns: dict[str, list[BenchTurn]],
    job: BenchJob,
    rows: Sequence[str],
    compared: dict[Pair, Gain],
) -> Table:
    rates = {row: median_interval([turn.images_per_second for turn in each]) for row, each in turns.items()}
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        if row in rates:
            cpu = median(turn.cpu_ms_per_image for turn in turns[row])
            what = _OURS.get(row) or PEERS[row].how
            cells.append((row, rates[row].median, interval(rates[row], "{:.0f}"), cpu, what))
        else:
            cells.append((row, None, None, None, rounds.failures[row]))
    columns = (
        *(Column("loader"), Column("images/s", "{:.0f}"), Column("interval"), Column("CPU ms/image", "{:.2f}")),
        Column("description"),
    )
    notes = [
        f"Batches of {job.loading.batch_size} at {job.loading.image_size} px, {job.num_workers} workers or threads, "
        f"{len(job.index)} files of {job.index.place}; each loader first had a turn that does not count."
    ]
    if turns and median(turn.seconds for each in turns.values() for turn in each) < _LEAST_SECONDS:
        notes.append(f"A turn lasts less than {_LEAST_SECONDS:g} s, too short for a reliable rate: raise --batches.")
    plot = Plot("Images per second, medians with their intervals", "", "images/s", "bars", (series("", rates),))
    finding = _finding({row: rate.median for row, rate in rates.items()}, compared)
    return Table("the loader alone", columns, tuple(cells), tuple(notes), (plot,), finding=finding)


def _finding(rates: dict[str, float], compared: dict[Pair, Gain]) -> str:
    """Our first row, and the fastest other loader."""
    if (ours := next((own for own in OWN if own in rates), None)) is None:
        return "No row of ours could be measured."
    sentence = f"The loader gives {rates[ours]:,.0f} images/s ({ours})"
    peers = [row for row in rates if row in PEERS]
    if not peers:
        return f"{sentence}."
    fastest = max(peers, key=rates.__getitem__)
    return f"{sentence}; beside {fastest}, the fastest other loader: {compared[ours, fastest]}."


def _stages(turns: dict[str, list[BenchTurn]]) -> Table:
    """A column for each of our rows: medians over the rounds."""
    own = {row: turns[row] for row in OWN if row in turns}
    columns = (Column("stage"), *(Column(row, "{:.4g}") for row in own))
    rows: list[tuple[Cell, ...]] = []
    for name, (label, factor) in _STAGES.items():
        means = [[turn.stages[name] for turn in each if name in turn.stages] for each in own.values()]
        if any(means):
            rows.append((label, *(factor * median(values) if values else None for values in means)))
    return Table("time of a worker for one batch", columns, tuple(rows))


def _ratios(compared: dict[Pair, Gain]) -> Table:
    columns = (Column("loaders"), Column("ratio", "{:.2f}"), Column("95 % interval"), Column("verdict"))
    rows = tuple((f"{own} / {other}", *gain.cells[1:]) for (own, other), gain in compared.items())
    return how_to_decide(Table("ratios", columns, rows))


def page(tables: Sequence[Table], facts: dict[str, Any]) -> str:
    """The result as an HTML page. facts: of the machine, with the command."""
    return page_of_tables("The loader alone", "", tables, about=about_texts(facts), command=facts["command"])


def as_json(rounds: Rounds[BenchTurn], job: BenchJob, tables: Sequence[Table], facts: dict[str, Any]) -> dict[str, Any]:
    """All turns, and the tables as printed."""
    return {
        **facts,
        "settings": {
            "folder": job.index.place,
            "files": len(job.index),
            "batch_size": job.loading.batch_size,
            "image_size": job.loading.image_size,
            "num_workers": job.num_workers,
            "prefetch_factor": job.prefetch_factor,
            "warmup_batches": job.num_warmup,
            "timed_batches": job.num_batches,
            "batches_end_on": job.device,
        },
        "turns": {row: [asdict(turn) for turn in turns] for row, turns in rounds.results.items()},
        "failures": rounds.failures,
        "tables": [asdict(table) for table in tables],
    }
