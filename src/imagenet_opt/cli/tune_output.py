"""What a tuning leaves: tables on the terminal, a JSON file, and the experiment to train with."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.cli.sheets import now, print_sheets
from imagenet_opt.cli.terminal import printable
from imagenet_opt.cli.tune_batch import Batch
from imagenet_opt.cli.tune_loader import ENOUGH, Loader, Setting
from imagenet_opt.cli.tune_run import Tuning
from imagenet_opt.cli.tune_turns import Turns
from imagenet_opt.cli.tuned import host, how_to_train, write_tuned
from imagenet_opt.cli.whole_file import write_whole
from imagenet_opt.measure.climb import LEAST_GAIN, Climb
from imagenet_opt.measure.contest import TURNS, surely_faster
from imagenet_opt.measure.sheet import Cell, Column, Sheet
from imagenet_opt.measure.statistics import median_interval

_RATES = (
    Column("setting"),
    Column("images/s", "{:,.1f}"),
    Column("from", "{:,.1f}"),
    Column("to", "{:,.1f}"),
    Column("times", "{:.2f}"),
    Column("turns", "{:.0f}"),
)
_WHY = {
    "enough": f"the GPU is the limit: the loader gives {ENOUGH:g} times what the device takes, no more is needed",
    "nothing more": "no other setting brings 3 % more",
    "budget": "not tried: budget: further settings of the loader",
}


def sheets_of(found: Tuning) -> list[Sheet]:
    """A table a part; every title says where the device was simulated."""
    sheets = []
    if found.turns is not None:
        sheets += [_contest_sheet(title, found.turns) for title in found.turns.contests]
    if found.batch is not None:
        sheets.append(_memory_sheet(found.batch))
    if found.loader is not None:
        sheets.append(_loader_sheet(found.loader, "" if found.simulated is None else f", simulated {found.simulated}"))
    return sheets


def _contest_sheet(title: str, turns: Turns) -> Sheet:
    contest, settings = turns.contests[title]
    rows = []
    for name, rates in contest.turns.items():
        seen = turns.seen.get(settings[name], [])
        compiled = max((turn.compile_seconds for turn in seen if turn.compile_seconds is not None), default=None)
        cells = _cells(name, rates, contest.turns[contest.base], [rate for turn in seen for rate in turn.windows])
        rows.append((*cells, compiled, contest.verdict(name)))
    columns = (*_RATES, Column("compile s", "{:.0f}"), Column("verdict"))
    return Sheet(f"device alone: {title}", columns, tuple(rows))


def _cells(name: str, rates: Sequence[float], base: Sequence[float], windows: Sequence[float]) -> tuple[Cell, ...]:
    if not rates:
        return (name, None, None, None, None, 0.0)
    middle, found = median_interval(rates).median, median_interval(windows or rates)
    times = middle / median_interval(base).median if base else None
    return (name, middle, found.low, found.high, times, float(len(rates)))


def _memory_sheet(batch: Batch) -> Sheet:
    rows = []
    for trial in batch.tried:
        verdict = "fits" if trial.peak_gib is not None else trial.why or "out of memory"
        rows.append((str(trial.batch), "all" if trial.micro is None else str(trial.micro), trial.peak_gib, verdict))
    columns = (Column("batch"), Column("at once"), Column("peak GiB", "{:.2f}"), Column("verdict"))
    return Sheet("what fits into the memory", columns, tuple(rows), tuple(batch.notes))


def _loader_sheet(loader: Loader, simulated: str) -> Sheet:
    found, base = loader.climb, next(iter(loader.climb.turns.values()))
    rows = []
    for setting, rates in found.turns.items():
        windows = [rate for ceiling in loader.ceilings[setting] for rate in ceiling.windows]
        rows.append((*_cells(str(setting), rates, base, windows), _beside_the_start(found, setting)))
    untimed = [(one, why) for one, why in found.failures.items() if one not in found.turns]
    rows += [(*_cells(str(one), (), base, ()), why) for one, why in untimed]
    if loader.target is None:
        facts = ["what the device takes is not known: it was not measured with all that is kept"]
    else:
        facts = [f"the device takes {loader.target / ENOUGH:,.0f} images/s{simulated}"]
    if (num := loader.num_processes) > 1:
        facts.append(f"{num} processes share the CPUs and the storage: one was measured, with 1/{num} of the CPUs")
    return Sheet(f"loader alone{simulated}", (*_RATES, Column("verdict")), tuple(rows), (*facts, _WHY[found.why]))


def _beside_the_start(found: Climb[Setting], setting: Setting) -> str:
    start, rates = next(iter(found.turns)), found.turns[setting]
    if setting in found.failures:
        return found.failures[setting]
    if setting == found.best:
        return "kept"
    if setting == start:
        return "as it was"
    if len(rates) < TURNS:
        lucky = found.rate(setting) >= LEAST_GAIN * found.rate(found.best)
        return "undecided: budget" if lucky else f"not {LEAST_GAIN - 1:.0%} faster".replace("%", " %")
    return "faster, surpassed" if surely_faster(rates, found.turns[start]) else "no difference"


def _notes(found: Tuning) -> list[str]:
    return [*(found.compute.notes if found.compute is not None else ()), *found.notes]


def print_tuning(found: Tuning, sheets: Sequence[Sheet]) -> None:
    console = print_sheets(sheets)
    for note in _notes(found):
        console.print(printable(note))
    console.print(printable(f"better here: {' '.join(found.overrides) or 'nothing; what is configured stays'}"))


def write_json(
    found: Tuning, sheets: Sequence[Sheet], facts: dict[str, Any], budget_seconds: float, file: Path
) -> None:
    """facts: of the machine, as it was before."""
    whole = {
        **facts,
        "simulated": found.simulated,
        "budget_seconds": budget_seconds,
        "seconds": round(found.seconds, 1),
        "overrides": list(found.overrides),
        "notes": _notes(found),
        "sheets": [asdict(sheet) for sheet in sheets],
    }
    write_whole(file, json.dumps(whole, indent=2) + "\n")


def _device() -> str:
    cpu = f"{machine.usable_cpus()} CPUs of {machine.cpu_name()}"
    return f"{torch.cuda.get_device_name()}, {cpu}" if torch.cuda.is_available() else cpu


def write_experiment(found: Tuning, sheets: Sequence[Sheet], command: str, given: Sequence[str]) -> Path | None:
    """conf/experiment/tuned_<host>_tune.yaml with what was measured as its header; None where nothing is to change."""
    if not found.overrides:
        print("nothing to change, no experiment is written", file=sys.stderr)
        return None
    device = f"simulated {found.simulated}" if found.simulated else _device()
    lines = [f"{now()}, {host()}, {device}, torch {machine.versions()['torch']}", command]
    for sheet in sheets:
        heads = [column.heading for column in sheet.columns]
        for row in sheet.texts():
            cells = [f"{head} {text}" for head, text in zip(heads, row, strict=True) if text != "-"]
            lines.append(f"{sheet.title}: {', '.join(cells)}")
        lines += sheet.notes
    file = write_tuned("tune", found.overrides, [*lines, *_notes(found)])
    print(how_to_train(file, given), file=sys.stderr)
    return file
