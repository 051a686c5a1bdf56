"""Writes the results of tuning: tables on the terminal, a page, JSON, and the experiment to train with."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from imagenet_opt.config.experiment_file import how_to_train, write_tuned
from imagenet_opt.config.overrides import train_program
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import as_budget, say
from imagenet_opt.display.terminal_table import about_texts, print_tables
from imagenet_opt.measure.stats.verdict import UNDECIDED
from imagenet_opt.tuning.climb import ROUNDS
from imagenet_opt.tuning.tuner import Tuning


def print_tuning(tuning: Tuning) -> None:
    console = print_tables(tuning.tables)
    for line in (*tuning.notes, *conclusion(tuning)):
        console.print(printable(line))


def conclusion(tuning: Tuning) -> list[str]:
    """Sentences about the settings to change, the settings without a turn and the undecided ones; "nothing is better"
    only if all settings are decided."""
    sentences = [f"better here: {' '.join(tuning.overrides)}"] if tuning.overrides else []
    if tuning.lacks_time:
        budget = as_budget(max(1200.0, 2 * tuning.budget_seconds))
        sentences.append(f"not all settings were tried, for lack of time: use --budget {budget}")
    if tuning.undecided:
        names = "; ".join(tuning.undecided)
        more = "imagenet-opt study --help: a study of your own takes more"
        sentences.append(f"{UNDECIDED} after {ROUNDS} rounds, so as configured: {names} ({more})")
    return sentences or ["nothing is better here; the configured settings stay"]


def page(tuning: Tuning, facts: dict[str, Any]) -> str:
    """The results as an HTML page. facts: of the machine before the tuning, with the command."""
    num = len(tuning.overrides)
    changes = f"{num} {'setting' if num == 1 else 'settings'} should change; the tables say why."
    return page_of_tables(
        "Tuning" if tuning.simulated is None else f"Tuning for a simulated {tuning.simulated}",
        changes if num else "No setting was found that is certain to be faster.",
        tuning.tables,
        about=about_texts(facts),
        command=facts["command"],
        lines=[*tuning.notes, *conclusion(tuning)],
        commands=[f"{train_program()} {shlex.join(tuning.overrides)}"] if num else [],
    )


def as_json(tuning: Tuning, facts: Mapping[str, Any]) -> dict[str, Any]:
    """All results. facts: of the machine before the tuning."""
    return {**facts, **asdict(tuning), "overrides": tuning.overrides, "conclusion": conclusion(tuning)}


def write_experiment(tuning: Tuning, facts: Mapping[str, Any], given: Sequence[str]) -> None:
    """Write conf/experiment/tuned_<host>_tune.yaml, with the measurements as its header, if a setting should change.
    given: overrides of the command line."""
    if not tuning.overrides:
        say("no experiment is written, since no setting is certain to be faster")
        return
    lines = [*about_texts(facts).values(), facts["command"]]
    for table in tuning.tables:
        for row in table.texts():
            cells = [f"{heading} {text}" for heading, text in zip(table.headings, row, strict=True) if text != "-"]
            lines.append(f"{table.title}: {', '.join(cells)}")
        lines += table.notes
    say(how_to_train(write_tuned("tune", tuning.overrides, [*lines, *tuning.notes, *conclusion(tuning)]), given))
