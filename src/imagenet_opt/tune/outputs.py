"""Writes the results of tuning: tables on the terminal, a JSON file, and the experiment to train with."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import as_budget
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table
from imagenet_opt.display.terminal_table import about_texts, now, print_tables, strict_json
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED, Ratio, verdict
from imagenet_opt.tune.batch import Batch
from imagenet_opt.tune.coordinate_search import LEAST_GAIN, TURNS, UNTRIED, CoordinateSearch
from imagenet_opt.tune.device_turns import Changes, Turns
from imagenet_opt.tune.loader import ENOUGH, Loader
from imagenet_opt.tune.tuner import Tuning

_RATES = (
    Column("setting"),
    Column("images/s", "{:,.1f}"),
    Column("from", "{:,.1f}"),
    Column("to", "{:,.1f}"),
    Column("times", "{:.2f}"),
    Column("turns", "{:.0f}"),
)
_WHY_STOPPED = {
    "nothing more": f"no other setting is {100 * (LEAST_GAIN - 1):.0f} % faster for certain",
    "budget": "not tried: budget (further settings of the loader)",
}


def tables_of(tuning: Tuning) -> list[Table]:
    """A table for each part; titles say if the device was simulated."""
    turns = tuning.turns
    tables = [_device_table(title, turns) for title, (climb, _) in turns.climbs.items() if climb.turns] if turns else []
    if tuning.batch is not None:
        tables.append(_memory_table(tuning.batch))
    if tuning.loader is not None:
        simulated = "" if tuning.simulated is None else f", simulated {tuning.simulated}"
        tables.append(_loader_table(tuning.loader, simulated))
    return tables


def _device_table(title: str, turns: Turns) -> Table:
    climb, settings = turns.climbs[title]
    base = next(iter(climb.turns.values()), [])
    rows = [
        (*_cells(name, climb.turns.get(name, ()), base), turns.compile_seconds.get(changes), climb.outcome(name))
        for name, changes in settings.items()
    ]
    columns = (*_RATES, Column("compile s", "{:.0f}"), Column("verdict"))
    return Table(f"device alone: {title}", columns, tuple(rows), plots=_plots(rows))


def _plots(rows: Sequence[tuple[Cell, ...]]) -> tuple[Plot, ...]:
    """Bars of the measured settings, with the minimum and maximum of their turns."""
    known = {
        str(name): (rate, *(end if isinstance(end, float) else rate for end in (low, high)))
        for name, rate, low, high, *_ in rows
        if isinstance(rate, float)
    }
    if not known:
        return ()
    rates, low, high = zip(*known.values(), strict=True)
    curve = Series("", tuple(known), rates, low, high)
    return (Plot("Images per second, median and range", "", "images/s", "bars", (curve,)),)


def _cells(name: str, rates: Sequence[float], base: Sequence[float]) -> tuple[Cell, ...]:
    """Cells of _RATES. The range is the minimum and maximum of several turns; one turn has no range."""
    if not rates:
        return (name, None, None, None, None, 0.0)
    low, high = (min(rates), max(rates)) if len(rates) > 1 else (None, None)
    times = median(rates) / median(base) if base else None
    return (name, median(rates), low, high, times, float(len(rates)))


def _memory_table(batch: Batch) -> Table:
    rows = []
    for trial in batch.tried:
        verdict = "fits" if trial.peak_gib is not None else trial.why or "out of memory"
        rows.append((str(trial.batch), "all" if trial.micro is None else str(trial.micro), trial.peak_gib, verdict))
    columns = (Column("batch"), Column("at once"), Column("peak GiB", "{:.2f}"), Column("verdict"))
    return Table("what fits into the memory", columns, tuple(rows), tuple(batch.notes))


def _loader_table(loader: Loader, simulated: str) -> Table:
    climb, base = loader.climb, next(iter(loader.climb.turns.values()))
    settings = dict.fromkeys([*climb.turns, *climb.failures])
    rows = [(*_cells(str(setting), climb.turns.get(setting, ()), base), climb.outcome(setting)) for setting in settings]
    if loader.target is None:
        facts = ["the rate of the device is unknown: it was not measured with all tuned settings"]
    else:
        size = "" if loader.smallest is None else f" of {loader.smallest} px, the smallest of the run"
        facts = [f"the device takes {loader.target / ENOUGH:,.0f} images/s{size}{simulated}"]
    if (num := loader.num_processes) > 1:
        facts.append(
            f"{num} processes share the CPUs and the storage; a single process was measured, with 1/{num} of the CPUs"
        )
    return Table(
        f"loader alone{simulated}",
        (*_RATES, Column("verdict")),
        tuple(rows),
        (*facts, _why_stopped(loader)),
        _plots(rows),
    )


def _why_stopped(loader: Loader) -> str:
    if loader.climb.why != "enough" or loader.target is None:
        return _WHY_STOPPED[loader.climb.why]
    times = loader.climb.rate(loader.climb.best) * ENOUGH / loader.target
    return f"the device is the limit: the loader is {times:.1f} times as fast, and {ENOUGH:g} times is enough"


def _longer_budget(tuning: Tuning) -> str:
    """Twice the time, and at least 10 minutes."""
    return f"--budget {as_budget(max(600.0, 2 * tuning.budget_seconds))}"


def _notes(tuning: Tuning) -> list[str]:
    return [*(tuning.compute.notes if tuning.compute is not None else ()), *tuning.notes]


def print_tuning(tuning: Tuning, tables: Sequence[Table]) -> None:
    if not _has_compared(tuning) and _lacking(tuning) is not None:
        print(f"nothing was tuned: {tuning.budget_seconds:g} s is too short; use {_longer_budget(tuning)}")
    console = print_tables(tables)
    for line in (*_notes(tuning), *conclusion(tuning)):
        console.print(printable(line))


def conclusion(tuning: Tuning) -> list[str]:
    """Sentences about the settings to change and the settings without a turn; "nothing is better" only if there was
    time for all settings."""
    better = [f"better here: {' '.join(tuning.overrides)}"] if tuning.overrides else []
    return [*better, *_besides(tuning)]


def _besides(tuning: Tuning) -> list[str]:
    """The conclusion without the settings to change."""
    lacking, undecided = _lacking(tuning), _undecided(tuning)
    if lacking and not tuning.overrides:
        lacking += "; until then the configured settings stay"
    sentences = [sentence for sentence in (lacking, undecided) if sentence]
    if not sentences and not tuning.overrides:
        return ["nothing is better here; the configured settings stay"]
    return sentences


def _climbs(tuning: Tuning) -> list[tuple[CoordinateSearch[str], Mapping[str, Changes]]]:
    return list(tuning.turns.climbs.values()) if tuning.turns else []


def _has_compared(tuning: Tuning) -> bool:
    """Whether anything was compared with the configured setting."""
    of_device = any(len(climb.turns) > 1 for climb, _ in _climbs(tuning))
    of_loader = tuning.loader is not None and len(tuning.loader.climb.turns) > 1
    return bool(tuning.overrides) or of_device or of_loader


def _undecided(tuning: Tuning) -> str | None:
    """Settings that had all their turns and are undecided, in words; None if there are none."""
    ratios: dict[str, Mapping[Any, Ratio]] = {}
    if tuning.turns:
        ratios |= {title: climb.ratios for title, (climb, _) in tuning.turns.climbs.items()}
    if tuning.loader:
        ratios |= {"loader": tuning.loader.climb.ratios}
    names = [
        f"{title}: {name}"
        for title, some in ratios.items()
        for name, ratio in some.items()
        if verdict(ratio) == UNDECIDED
    ]
    if not names:
        return None
    return (
        f"{UNDECIDED} after {TURNS} turns, so as configured: {'; '.join(names)} (a study of your own takes more turns, "
        "see imagenet-opt study --help)"
    )


def _lacking(tuning: Tuning) -> str | None:
    """Settings that lacked time, in words; None if there are none."""
    settings = [(climb, name) for climb, settings in _climbs(tuning) for name in list(settings)[1:]]
    outcomes = [climb.outcome(name) for climb, name in settings if name not in climb.ratios]
    num_untried = outcomes.count(UNTRIED)
    num_open = sum(outcome == UNDECIDED or outcome.endswith("budget") for outcome in outcomes) - num_untried
    parts = []
    for num, state in ((num_untried, "not tried"), (num_open, "left undecided")):
        if num:
            parts.append(f"{num} of {len(settings)} settings of the device {'was' if num == 1 else 'were'} {state}")
    if tuning.batch is not None and any(note.startswith(UNTRIED) for note in tuning.batch.notes):
        parts.append("not all batch sizes were tried")
    if tuning.loader is not None and tuning.loader.climb.why == "budget":
        parts.append("not all settings of the loader were tried")
    return f"{', '.join(parts)}, for lack of time: use {_longer_budget(tuning)}" if parts else None


def page(tuning: Tuning, tables: Sequence[Table], facts: dict[str, Any]) -> str:
    """The results as an HTML page. facts: of the machine before the tuning, with the command."""
    num = len(tuning.overrides)
    changes = f"{num} setting{'s' * (num != 1)} should change; the tables say why."
    return page_of_tables(
        "Tuning" if tuning.simulated is None else f"Tuning for a simulated {tuning.simulated}",
        changes if num else "No setting was found that is certain to be faster.",
        tables,
        about=about_texts(facts),
        command=facts["command"],
        lines=[*_notes(tuning), *_besides(tuning)],
        commands=[f"python train.py {shlex.join(tuning.overrides)}"] if num else [],
    )


def write_json(
    tuning: Tuning, tables: Sequence[Table], facts: dict[str, Any], budget_seconds: float, file: Path
) -> None:
    """Write all results. facts: of the machine before the tuning. Raises ConfigError."""
    content = {
        **facts,
        "simulated": tuning.simulated,
        "budget_seconds": budget_seconds,
        "seconds": round(tuning.seconds, 1),
        "overrides": list(tuning.overrides),
        "notes": _notes(tuning),
        "conclusion": conclusion(tuning),
        "tables": [asdict(table) for table in tables],
    }
    try:
        write_atomically(file, strict_json(content))
    except OSError as error:
        remedy = "the tables above have all results"
        raise ConfigError(f"--json {file} could not be written: {error.strerror}; {remedy}") from error


def write_experiment(tuning: Tuning, tables: Sequence[Table], command: str, given: Sequence[str]) -> None:
    """Write conf/experiment/tuned_<host>_tune.yaml, with the measurements as its header, if a setting should change.
    given: overrides of the command line."""
    if not tuning.overrides:
        print("no experiment is written, since no setting is certain to be faster", file=sys.stderr)
        return
    device = f"{machine.usable_cpus()} CPUs of {machine.cpu_name()}"
    if tuning.simulated:
        device = f"simulated {tuning.simulated}"
    elif torch.cuda.is_available():
        device = f"{torch.cuda.get_device_name()}, {device}"
    lines = [f"{now()}, {host()}, {device}, torch {machine.versions()['torch']}", command]
    for table in tables:
        headings = [column.heading for column in table.columns]
        for row in table.texts():
            cells = [f"{heading} {text}" for heading, text in zip(headings, row, strict=True) if text != "-"]
            lines.append(f"{table.title}: {', '.join(cells)}")
        lines += table.notes
    lacking = filter(None, [_lacking(tuning)])
    file = write_tuned("tune", tuning.overrides, [*lines, *_notes(tuning), *lacking])
    print(how_to_train(file, given), file=sys.stderr)
