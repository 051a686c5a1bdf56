"""Prints a short form of the report on the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.printable import printable
from imagenet_opt.display.terminal_table import facts_table
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.terminal_view import print_diagnosis
from imagenet_opt.report.comparison import careful, verdict_rows
from imagenet_opt.report.key_figures import epoch, rates, tiles
from imagenet_opt.report.run_files import Record


def print_summary(record: Record, baseline: Record | None, console: Console) -> None:
    """Print the diagnosis with epoch times, or the run's speed if it has no verdict; then the baseline's verdict.

    console: created with `markup=False, highlight=False`, and at least 80 columns wide.
    """
    if record.diagnosis is not None:
        print_diagnosis(record.diagnosis, console)
    else:
        console.print(Text(printable(record.name)))
    console.print(_numbers(record))
    if baseline is not None:
        for warning in careful(record, baseline):
            console.print(Text(printable(f"careful: {warning}"), style="yellow"))
        if record.diagnosis is not None and baseline.diagnosis is not None:
            console.print(_differences(record.name, record.diagnosis, baseline.name, baseline.diagnosis))
    if (absent := record.absent.get("diagnosis")) is not None:
        console.print(Text(printable(f"no verdict: {absent}")))


def _numbers(record: Record) -> Table:
    """Epoch times for a diagnosis with a verdict, which prints its own rates; otherwise the tiles."""
    if record.diagnosis is not None and record.diagnosis.is_judged:
        rows = {label: epoch(rate, record.diagnosis) for label, rate in rates(record.diagnosis).items()}
    else:
        rows = {tile.label: tile.value for tile in tiles(record)}
    simulated = " (simulated)" if record.simulated else ""
    facts = ((f"{label}{simulated}", Text(words, style="bold")) for label, words in rows.items())
    return facts_table(facts, style="dim")


def _differences(name: str, diagnosis: Diagnosis, baseline_name: str, baseline: Diagnosis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", f"now: {name}", f"baseline: {baseline_name}"):
        table.add_column(Text(printable(heading)), overflow="fold")
    for row in verdict_rows(diagnosis, baseline):
        table.add_row(*(Text(printable(cell)) for cell in row[:3]))
    return table
