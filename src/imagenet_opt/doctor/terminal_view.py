"""Prints a diagnosis on the terminal: verdict, ceilings, remedies."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.printable import printable
from imagenet_opt.display.terminal_table import facts_table
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.rule import Finding

_BAR = 24
"""Characters of the longest bar, if the other columns leave enough room."""
_BESIDE = 34
"""Characters of the other columns, except the name of the stage."""
_REACH = 2.0
"""A full bar is this many times the rate of the GPU."""
_NOT_PREDICTABLE = "gain not predictable"
_STYLES = {"gpu": "green", "loader": "blue", "decode": "yellow", "storage": "magenta", "copy": "cyan", "full": "white"}
_CONFIDENCE_STYLES = {"high": "green", "medium": "yellow", "low": "red"}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print a diagnosis. console: with `markup=False, highlight=False`, and at least 80 columns."""
    console.print(verdict_panel(diagnosis), _ceilings(diagnosis, console), Text())
    if texts := _of_files(diagnosis.measurements):
        rows = [("" if number else "files", text) for number, text in enumerate(texts)]
        console.print(_dimmed(rows), Text())
    fired = [finding for finding in diagnosis.findings if finding.fired]
    fired.sort(key=lambda finding: -(finding.gain or 0))
    for finding in fired:
        if finding.rule != diagnosis.cause:  # the verdict explains the cause
            console.print(_finding(finding))
    num_quiet = sum(finding.fired is False for finding in diagnosis.findings)
    rows = [("rules", f"{len(fired)} fired, {num_quiet} did not")]
    if unchecked := [finding.rule for finding in diagnosis.findings if finding.fired is None]:
        rows.append(("not checked", ", ".join(unchecked)))
    console.print(_dimmed(rows))


def _of_files(evidence: Evidence) -> list[str]:
    """What was observed of the files."""
    cache, touches, limit = evidence.setup.cache, evidence.touches, evidence.limits.get("storage_cold")
    texts = [part.evidence for part in (cache, touches, limit) if part is not None]
    return [*texts, evidence.left_out] if evidence.left_out else texts


def _dimmed(rows: list[tuple[str, str]]) -> Table:
    return facts_table([(name, Text(printable(text), style="dim")) for name, text in rows], style="dim")


def verdict_panel(diagnosis: Diagnosis) -> Panel:
    """The sentence, the explanation and the main numbers."""
    level, doubts = diagnosis.confidence
    style = "green" if diagnosis.cause == "healthy" else "red"
    title = diagnosis.meaning
    if diagnosis.measurements.simulated:
        title = printable(f"simulated: {diagnosis.measurements.simulated}")
    row = ("confidence", Text("; ".join([level, *doubts]), style=_CONFIDENCE_STYLES[level]))
    facts = facts_table([*diagnosis.explanation, *_facts(diagnosis), row], style="dim")
    sentence = Text(printable(diagnosis.sentence), style="bold")
    return Panel(Group(sentence, Text(), facts), title=Text(title), title_align="left", border_style=style)


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    def rate(images: float) -> str:
        return f"{images / diagnosis.measurements.batch_size:.2f} it/s, {images:,.0f} images/s"

    evidence, rows = diagnosis.measurements, []
    if diagnosis.is_judged:
        rows.append(("measured", rate(diagnosis.measured)))
        rows.append(("expected", f"{rate(diagnosis.expected)}; the run reaches {diagnosis.efficiency:.0%} of it"))
        rows.append(("unexplained", f"{diagnosis.unexplained:.0%} of the rate that the stages alone allow"))
        word = "pass" if evidence.busy_share >= BUSY_ENOUGH else "fail"
        busy = f"{evidence.busy_share:.1%}; MLPerf Storage asks for {BUSY_ENOUGH:.0%}: {word}"
        rows.append(("accelerator utilisation", busy))
    if evidence.setup.profile:
        rows.append((f"profile {printable(evidence.simulated or '')}", printable(evidence.setup.profile)))
    if diagnosis.next_gain is not None:
        label = "faster device" if diagnosis.cause == "healthy" else "if fixed"
        fixed = evidence.rate_in_trouble * diagnosis.next_gain
        rows.append((label, f"{rate(fixed)}, {diagnosis.next_gain:.2f} times as fast"))
    elif diagnosis.is_judged and diagnosis.cause != "healthy":
        rows.append(("if fixed", _NOT_PREDICTABLE))
    if diagnosis.next_stage is not None:
        rows.append(("next limit", evidence.stages.get(diagnosis.next_stage, diagnosis.next_stage)))
    return rows


def _ceilings(diagnosis: Diagnosis, console: Console) -> Table:
    ceilings, stages = diagnosis.measurements.ceilings, diagnosis.measurements.stages
    names = {name: text for name, text in stages.items() if name in ceilings}
    width = max(1, min(_BAR, console.width - _BESIDE - max(map(len, names.values()), default=0)))
    table = Table(box=box.SIMPLE_HEAD, title="what each stage reaches alone", padding=(0, 1, 0, 0))
    table.title_justify = "left"
    table.add_column(no_wrap=True)
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column(min_width=width, no_wrap=True)
    rates = {name: ceilings[name].images_per_second for name in names}
    reach = _REACH * max([diagnosis.expected, *(rate for name, rate in rates.items() if name.startswith("gpu"))])
    for name, rate in rates.items():
        estimate = ceilings[name].estimate
        interval = f"{estimate.low:,.0f} to {estimate.high:,.0f}" if estimate.num > 1 else "one window"
        bar = Text(_bar(rate / reach, width, console.options.ascii_only), _STYLES[name.partition("_")[0]])
        table.add_row(names[name], f"{rate:,.0f}", interval, bar)
    return table


def _bar(share: float, width: int, ascii_only: bool) -> str:
    """A bar in eighths of a character, with an arrow at the end if the share is above 1."""
    full, arrow, parts = ("#", ">", " " * 8) if ascii_only else ("█", "→", " ▏▎▍▌▋▊▉")
    if share > 1:
        return full * (width - 1) + arrow
    num_full, part = divmod(round(share * width * 8), 8)
    return (full * num_full + parts[part]).rstrip()


def _finding(finding: Finding) -> RenderableType:
    head = Text("* ", style="bold red").append(printable(finding.rule), style="bold")
    promise = _NOT_PREDICTABLE if finding.gain is None else f"{finding.gain:.2f} times as fast"
    head.append(f"  {promise}", style="dim" if finding.gain is None else "green")
    lines = Table.grid()
    lines.add_column(width=2)
    lines.add_column(overflow="fold")
    typed = [(line, "cyan") for line in (" ".join(finding.overrides), *finding.commands)]
    for text, style in [(finding.evidence, ""), (finding.remedy, ""), *typed]:
        if text:
            lines.add_row("", Text(printable(text), style=style))
    return Group(head, lines, Text())
