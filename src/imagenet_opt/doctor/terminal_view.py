"""A diagnosis on the terminal: the sentence, the ceilings, what to do."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.printable import printable
from imagenet_opt.doctor.confidence import confidence, is_unverified
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis, Finding
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, evidence_of
from imagenet_opt.doctor.explanation import explanation, gap
from imagenet_opt.doctor.verdict import is_judged, meaning, rate_in_trouble
from imagenet_opt.measure.stats.rate import Ceiling

_BAR = 24
"""Characters of the longest bar, where there is room for it beside the other columns."""
_BESIDE = 34
"""What the other columns take beside the name of the stage."""
_REACH = 2.0
"""Bars end at so many times what the GPU takes."""
_NOT_PREDICTABLE = "gain not predictable"
_STYLES = {"gpu": "green", "loader": "blue", "decode": "yellow", "storage": "magenta", "copy": "cyan", "full": "white"}
_SURE = {"high": "green", "medium": "yellow", "low": "red"}


def print_diagnosis(found: Diagnosis, console: Console) -> None:
    """In the order in which one asks: what is it, how is that known, what is to be done.

    console: with `markup=False, highlight=False`, and a width of 80 at least.
    """
    console.print(_verdict(found), _ceilings(found, console), Text())
    facts = found.facts
    for evidence in filter(None, (facts.first_touch_evidence, facts.storage_evidence, facts.memory_evidence)):
        console.print(Text(printable(f"files: {evidence}"), style="dim"), Text())
    fired = [finding for finding in found.findings if finding.fired]
    fired.sort(key=lambda one: (one.rule != found.cause, -(one.gain or 0)))
    for finding in fired:
        if finding.rule != found.cause:  # which the verdict explains
            console.print(_finding(finding))
    quiet = sum(finding.fired is False for finding in found.findings)
    blind = [finding.rule for finding in found.findings if finding.fired is None]
    console.print(Text(f"{len(fired)} rules fired, {quiet} did not", style="dim"))
    if blind:
        console.print(Text(printable(f"not looked at: {', '.join(blind)}"), style="dim"))


def _verdict(found: Diagnosis) -> Panel:
    level, doubts = confidence(found)
    style = "green" if found.cause == "healthy" else "red"
    title = meaning(found)
    if found.simulated:
        estimate = " (estimate)" if found.facts.profile_estimate else ""
        title = printable(f"simulated: {found.simulated}{estimate}")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, words in explanation(found):
        facts.add_row(name, Text(printable(words)))
    for name, words in _facts(found):
        facts.add_row(name, words)
    facts.add_row("confidence", Text("; ".join([level, *doubts]), style=_SURE[level]))
    sentence = Text(printable(found.sentence), style="bold")
    return Panel(Group(sentence, Text(), facts), title=Text(title), title_align="left", border_style=style)


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    def rate(images: float) -> str:
        return f"{images / found.batch_size:.2f} it/s, {images:,.0f} images/s"

    rows = []
    if is_judged(found):
        rows.append(("measured", rate(found.measured)))
        rows.append(("expected", f"{rate(found.expected)}; the run reaches {found.efficiency:.0%} of it"))
    if found.unexplained is not None:
        rows.append(("unexplained", str(gap(found))))
    if (busy := found.facts.accelerator_utilization) is not None:
        word = "pass" if busy >= BUSY_ENOUGH else "fail"
        rows.append(("accelerator utilisation", f"{busy:.1%}; MLPerf Storage asks for {BUSY_ENOUGH:.0%}: {word}"))
    if found.facts.profile is not None:
        rows.append((f"profile {printable(found.simulated or '')}", printable(found.facts.profile)))
    if found.next_gain is not None:
        when = "faster GPU" if found.cause == "healthy" else "if mended"
        mended = rate_in_trouble(evidence_of(found)) * found.next_gain
        rows.append((when, f"{rate(mended)}, {found.next_gain:.2f} times as fast"))
    elif is_judged(found) and found.cause != "healthy":
        rows.append(("if mended", _NOT_PREDICTABLE))
    if found.next_stage is not None:
        rows.append(("next limit", STAGES.get(found.next_stage, found.next_stage)))
    return rows


def _ceilings(found: Diagnosis, console: Console) -> Table:
    unverified = " (unverified)" if is_unverified(found) else ""
    names = {name: STAGES[name] + unverified * name.endswith("_cold") for name in STAGES if name in found.ceilings}
    width = max(1, min(_BAR, console.width - _BESIDE - max(map(len, names.values()), default=0)))
    table = Table(
        box=box.SIMPLE_HEAD, title="what each stage can do, alone", title_justify="left", padding=(0, 1, 0, 0)
    )
    table.add_column(no_wrap=True)
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column(min_width=width, no_wrap=True)
    rates = {name: found.ceilings[name].images_per_second for name in names}
    reach = _REACH * max([found.expected, *(rate for name, rate in rates.items() if name.startswith("gpu"))])
    for name, rate in rates.items():
        bar = Text(_bar(rate / reach, width, console.options.ascii_only), _STYLES[name.partition("_")[0]])
        table.add_row(names[name], f"{rate:,.0f}", _span(found.ceilings[name]), bar)
    return table


def _bar(share: float, width: int, ascii_only: bool) -> str:
    """In eighths of a character; an arrow where it goes on."""
    full, arrow, parts = ("#", ">", " " * 8) if ascii_only else ("█", "→", " ▏▎▍▌▋▊▉")
    if share > 1:
        return full * (width - 1) + arrow
    whole, part = divmod(round(share * width * 8), 8)
    return (full * whole + parts[part]).rstrip()


def _span(ceiling: Ceiling) -> str:
    estimate = ceiling.estimate
    return f"{estimate.low:,.0f} to {estimate.high:,.0f}" if estimate.num > 1 else "one window"


def _finding(finding: Finding) -> RenderableType:
    head = Text("* ", style="bold red").append(printable(finding.rule), style="bold")
    promise = _NOT_PREDICTABLE if finding.gain is None else f"{finding.gain:.2f} times as fast"
    head.append(f"  {promise}", style="dim" if finding.gain is None else "green")
    lines = Table.grid()
    lines.add_column(width=2)
    lines.add_column(overflow="fold")
    typed = [(line, "cyan") for line in (" ".join(finding.overrides), *finding.commands)]
    for words, style in [(finding.evidence, ""), (finding.remedy, ""), *typed]:
        if words:
            lines.add_row("", Text(printable(words), style=style))
    return Group(head, lines, Text())
