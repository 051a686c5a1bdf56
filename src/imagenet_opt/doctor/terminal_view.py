"""Prints a diagnosis on the terminal: verdict, ceilings, remedies."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.printable import printable
from imagenet_opt.display.terminal_table import facts_table, verdict_panel
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY

_BAR = 24  # characters of the longest bar, if the other columns leave enough room
_REACH = 2.0  # a full bar is this many times the rate of the GPU
_STYLES = {"gpu": "green", "loader": "blue", "decode": "yellow", "storage": "magenta", "copy": "cyan", "full": "white"}
_CONFIDENCE_STYLES = {"high": "green", "medium": "yellow", "low": "red"}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print a diagnosis. console: with `markup=False, highlight=False`, and at least 80 columns."""
    console.print(panel(diagnosis), _ceilings(diagnosis), Text())
    if diagnosis.measurements.left_out:
        console.print(_dimmed("files", diagnosis.measurements.left_out), Text())
    fired = [finding for finding in diagnosis.findings if finding.fired]
    fired.sort(key=lambda finding: -(finding.gain or 0))
    for finding in fired:
        if finding.rule != diagnosis.cause:  # the verdict explains the cause
            console.print(_finding(finding))
    if unchecked := [finding.rule for finding in diagnosis.findings if finding.fired is None]:
        console.print(_dimmed("not checked", ", ".join(unchecked)))


def _dimmed(name: str, text: str) -> Table:
    return facts_table([(name, Text(printable(text), style="dim"))], style="dim")


def panel(diagnosis: Diagnosis) -> Panel:
    """The sentence, the explanation and the main numbers."""
    level, doubts = diagnosis.confidence
    title = diagnosis.meaning
    if diagnosis.measurements.simulated:
        title = printable(f"simulated: {diagnosis.measurements.simulated}")
    row = ("confidence", Text("; ".join([level, *doubts]), style=_CONFIDENCE_STYLES[level]))
    facts: list[tuple[str, str | Text]] = [*diagnosis.explanation, *_facts(diagnosis), row]
    return verdict_panel(diagnosis.sentence, facts, title=title, healthy=diagnosis.cause == "healthy")


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    def rate(images: float) -> str:
        return f"{images / diagnosis.measurements.batch_size:.2f} it/s, {images:,.0f} images/s"

    evidence, rows = diagnosis.measurements, []
    if diagnosis.is_judged:
        rows.append(("measured", rate(diagnosis.measured)))
        rows.append(("expected", f"{rate(diagnosis.expected)}; the run reaches {diagnosis.efficiency:.0%} of it"))
        rows.append(("unexplained", f"{diagnosis.unexplained:.0%} of the rate that the stages alone allow"))
        busy = f"{evidence.busy_share:.1%}; MLPerf Storage asks for {HEALTHY_BUSY:.0%}"
        rows.append(("accelerator utilisation", busy))
    if evidence.setup.profile:
        rows.append((f"profile {printable(evidence.simulated or '')}", printable(evidence.setup.profile)))
    if diagnosis.next_gain is not None and diagnosis.next_rate is not None:
        label = "faster device" if diagnosis.cause == "healthy" else "if fixed"
        rows.append((label, f"{rate(diagnosis.next_rate)}, {diagnosis.next_gain:.2f} times as fast"))
    elif diagnosis.is_judged and diagnosis.cause not in ("healthy", "balanced"):
        rows.append(("if fixed", "gain not predictable"))
    if diagnosis.next_stage is not None:
        rows.append(("next limit", evidence.stages.get(diagnosis.next_stage, diagnosis.next_stage)))
    return rows


def _ceilings(diagnosis: Diagnosis) -> Table:
    ceilings, stages = diagnosis.measurements.ceilings, diagnosis.measurements.stages
    names = {name: text for name, text in stages.items() if name in ceilings}
    table = Table(box=box.SIMPLE_HEAD, title="what each stage reaches alone", padding=(0, 1, 0, 0))
    table.title_justify = "left"
    table.add_column(no_wrap=True)
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column(max_width=_BAR)
    rates = {name: ceilings[name].images_per_second for name in names}
    reach = _REACH * max([diagnosis.expected, *(rate for name, rate in rates.items() if name.startswith("gpu"))])
    for name, rate in rates.items():
        estimate = ceilings[name].estimate
        interval = f"{estimate.low:,.0f} to {estimate.high:,.0f}" if estimate.num > 1 else "one window"
        style = _STYLES[name.partition("_")[0]]
        bar = ProgressBar(reach, min(rate, reach), complete_style=style, finished_style=style)
        table.add_row(names[name], f"{rate:,.0f}", interval, bar)
    return table


def _finding(finding: Finding) -> RenderableType:
    head = Text("* ", style="bold red").append(printable(finding.rule), style="bold")
    if finding.gain is not None:
        head.append(f"  {finding.gain:.2f} times as fast", style="green")
    lines = Table.grid()
    lines.add_column(width=2)
    lines.add_column(overflow="fold")
    typed = [(line, "cyan") for line in (" ".join(finding.overrides), *finding.commands)]
    for text, style in [(finding.evidence, ""), (finding.remedy, ""), *typed]:
        if text:
            lines.add_row("", Text(printable(text), style=style))
    return Group(head, lines, Text())
