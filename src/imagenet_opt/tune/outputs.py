"""Writes the results of tuning: tables on the terminal, a page, a JSON file, and the experiment to train with."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import as_budget, say
from imagenet_opt.display.table import Table
from imagenet_opt.display.terminal_table import about_texts, now, print_tables, strict_json
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED
from imagenet_opt.tune.climb import OPEN, ROUNDS, UNTRIED
from imagenet_opt.tune.tuner import Tuning


def tables_of(tuning: Tuning) -> list[Table]:
    """A table for each part; titles say if the device was simulated."""
    climbs = {f"device alone: {title}": climb for title, climb in tuning.device_climbs.items() if climb.rates}
    tables = [climb.table(title) for title, climb in climbs.items()]
    return [*tables, *(part.table for part in tuning.parts if part.table is not None)]


def print_tuning(tuning: Tuning, tables: Sequence[Table]) -> None:
    has_compared = tuning.overrides or any(len(climb.rates) > 1 for climb in tuning.climbs.values())
    if not has_compared and _lacks_time(tuning):
        print(f"nothing was tuned: {tuning.budget_seconds:g} s is too short; use {_longer_budget(tuning)}")
    console = print_tables(tables)
    for line in (*tuning.notes, *conclusion(tuning)):
        console.print(printable(line))


def conclusion(tuning: Tuning) -> list[str]:
    """Sentences about the settings to change and the settings without a turn; "nothing is better" only if there was
    time for all settings."""
    better = [f"better here: {' '.join(tuning.overrides)}"] if tuning.overrides else []
    return [*better, *_besides(tuning)]


def _besides(tuning: Tuning) -> list[str]:
    """The conclusion without the settings to change."""
    lacking, undecided = _lacks_time(tuning), _undecided(tuning)
    if lacking and not tuning.overrides:
        lacking += "; until then the configured settings stay"
    sentences = [sentence for sentence in (lacking, undecided) if sentence]
    if not sentences and not tuning.overrides:
        return ["nothing is better here; the configured settings stay"]
    return sentences


def _longer_budget(tuning: Tuning) -> str:
    """Twice the time, and at least 10 minutes."""
    return f"--budget {as_budget(max(600.0, 2 * tuning.budget_seconds))}"


def _undecided(tuning: Tuning) -> str:
    """Settings that had all their rounds and are undecided, in words; empty if there are none."""
    names = [
        f"{title}: {name}"
        for title, climb in tuning.climbs.items()
        for name, outcome in climb.outcomes.items()
        if outcome.startswith(UNDECIDED) and outcome != OPEN
    ]
    if not names:
        return ""
    return (
        f"{UNDECIDED} after {ROUNDS} rounds, so as configured: {'; '.join(names)} (a study of your own takes more "
        "rounds, see imagenet-opt study --help)"
    )


def _lacks_time(tuning: Tuning) -> str:
    """Settings that lacked time, in words; empty if there are none."""
    outcomes = [climb.outcome(name) for climb in tuning.device_climbs.values() for name in climb.names[1:]]
    parts = []
    for outcome, state in ((UNTRIED, "not tried"), (OPEN, "left undecided")):
        if num := outcomes.count(outcome):
            parts.append(f"{num} of {len(outcomes)} settings of the device {'was' if num == 1 else 'were'} {state}")
    parts += [part.lacks_time for part in tuning.parts if part.lacks_time]
    return f"{', '.join(parts)}, for lack of time: use {_longer_budget(tuning)}" if parts else ""


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
        lines=[*tuning.notes, *_besides(tuning)],
        commands=[f"python train.py {shlex.join(tuning.overrides)}"] if num else [],
    )


def write_json(tuning: Tuning, tables: Sequence[Table], facts: Mapping[str, Any], file: Path) -> None:
    """Write all results. facts: of the machine before the tuning. Raises ConfigError."""
    content = {
        **facts,
        "simulated": tuning.simulated,
        "budget_seconds": tuning.budget_seconds,
        "seconds": round(tuning.seconds, 1),
        "overrides": list(tuning.overrides),
        "notes": tuning.notes,
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
        say("no experiment is written, since no setting is certain to be faster")
        return
    device = f"{machine.usable_cpus()} CPUs of {machine.cpu_name()}"
    if tuning.simulated:
        device = f"simulated {tuning.simulated}"
    elif torch.cuda.is_available():
        device = f"{torch.cuda.get_device_name()}, {device}"
    lines = [f"{now()}, {host()}, {device}, torch {machine.versions()['torch']}", command]
    for table in tables:
        for row in table.texts():
            cells = [f"{heading} {text}" for heading, text in zip(table.headings, row, strict=True) if text != "-"]
            lines.append(f"{table.title}: {', '.join(cells)}")
        lines += table.notes
    lacking = filter(None, [_lacks_time(tuning)])
    file = write_tuned("tune", tuning.overrides, [*lines, *tuning.notes, *lacking])
    say(how_to_train(file, given))
