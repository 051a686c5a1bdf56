"""The report as one page that needs no network."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from imagenet_opt.display.page import html_of, render_page
from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.doctor.diagnosis import STAGES, Diagnosis, Finding
from imagenet_opt.doctor.explanation import explanation, least_stage
from imagenet_opt.doctor.verdict import meaning
from imagenet_opt.report import charts, timeline_chart
from imagenet_opt.report.comparison import careful, differences, show
from imagenet_opt.report.key_figures import tiles
from imagenet_opt.report.run_files import Record, leaves
from imagenet_opt.report.timeline_data import pack

if TYPE_CHECKING:
    import plotly.graph_objects as go

PARTS = {
    "ceilings": "What each stage can do",
    "step": "Where a step goes",
    "timeline": "Timeline",
    "steps": "Length of steps",
    "curves": "What more of it would bring",
    "rules": "Rules",
    "baseline": "Against a baseline",
    "about": "Machine, versions, configuration",
}
"""Anchor -> heading."""
EMPTY = "the doctor measured nothing for this part"


def render(record: Record, baseline: Record | None = None, *, price_per_hour: float | None = None) -> str:
    """The whole page. price_per_hour: of the machine, in dollars.

    Texts are escaped by jinja2, those in figures where they are made; plotly writes data without < and >.
    """
    found = record.diagnosis
    drawn = figures(record, baseline)
    return render_page(
        Path(__file__).with_name("page.html"),
        title=_title(record),
        plotly=True,
        record=record,
        baseline=baseline,
        found=found,
        cause=meaning(found) if found else None,
        explanation=explanation(found) if found else [],
        least_stage=least_stage(found) if found else None,
        next_stage=STAGES.get(found.next_stage, found.next_stage) if found and found.next_stage else None,
        sure=confidence(found) if found else None,
        simulated=record.simulated,
        tiles=tiles(record, price_per_hour),
        parts=PARTS,
        empty=EMPTY,
        figures={name: _html(name, figure) for name, figure in drawn.items()},
        curves=[name for name in charts.CURVES if name in drawn],
        findings=_by_outcome(found) if found else {},
        careful=careful(record, baseline) if baseline else [],
        rows=differences(record, baseline) if baseline else {},
        about=about(record),
        packed=pack(record.timeline, simulated=record.simulated is not None) if record.timeline else None,
    )


def figures(record: Record, baseline: Record | None = None) -> dict[str, "go.Figure"]:
    """Those for which there are data, by their place in page.html."""
    found = record.diagnosis
    drawn: dict[str, go.Figure] = {}
    if found is not None:
        drawn = _of_diagnosis(found)
    if record.timeline is not None:
        drawn["timeline"] = timeline_chart.timeline(record.timeline, simulated=record.simulated is not None)
    if len(record.metrics) > 1:
        drawn["metrics"] = charts.rates(record.metrics, simulated=record.simulated is not None)
    if record.steps is not None:
        drawn["histogram"] = charts.histogram({record.name: record.steps}, simulated=record.simulated is not None)
        if baseline is not None and baseline.steps is not None:
            runs = {record.name: record.steps, f"{baseline.name} (baseline)": baseline.steps}
            simulated = any(run.simulated is not None for run in (record, baseline))
            drawn["overlay"] = charts.histogram(runs, simulated=simulated)
    return drawn


def _of_diagnosis(found: Diagnosis) -> dict[str, "go.Figure"]:
    drawn = {"ceilings": charts.ceilings(found)} if found.measurements.ceilings else {}
    if found.waterfall:
        drawn["waterfall"] = charts.waterfall(found)
    if found.measurements.phases:
        drawn["phases"] = charts.phases(found)
    return drawn | {name: charts.curve(found, name) for name in charts.CURVES if found.measurements.curves.get(name)}


def _html(name: str, figure: "go.Figure") -> Markup:
    bar: dict[str, Any] = {"displayModeBar": name == "timeline", "displaylogo": False}
    if name == "timeline":  # of which only the visible part is drawn: what is not would not be scaled to
        bar |= {"doubleClick": "reset", "modeBarButtonsToRemove": ["autoScale2d"]}
    return html_of(figure, id=f"plot-{name}", **bar)


def _title(record: Record) -> str:
    return f"{record.name} (simulated)" if record.simulated else record.name


def _by_outcome(found: Diagnosis) -> dict[str, list[Finding]]:
    """Those that fired by what they promise."""
    groups: dict[str, list[Finding]] = {"fired": [], "quiet": [], "blind": []}
    for finding in found.findings:
        groups["blind" if finding.fired is None else "fired" if finding.fired else "quiet"].append(finding)
    groups["fired"].sort(key=lambda finding: -(finding.gain or 0))
    return groups


def about(record: Record) -> Mapping[str, list[tuple[str, str]]]:
    """Tables of names and values, by heading; those without any are empty."""
    found = record.diagnosis
    known: dict[str, Mapping[str, Any]] = {}
    if found is not None:
        known = {
            "Machine": found.measurements.machine,
            "Versions": found.measurements.versions,
            "How sure it is": _certainty(found),
        }
        known |= {"The cure, tried": found.trial or {}}
        known |= {"Measured beside the stages": found.measurements.facts.known()}
    known |= {"Summary of the run": record.summary, "Configuration": record.config}
    return {name: [(key, show(value)) for key, value in leaves(facts)] for name, facts in known.items()}


def _certainty(found: Diagnosis) -> dict[str, Any]:
    level, doubts = confidence(found)
    known: dict[str, Any] = {"confidence": level, "doubts": "; ".join(doubts) or "none"}
    unexplained = found.unexplained
    shares = {"measured / expected": found.efficiency, "unexplained": unexplained}
    return known | ({} if unexplained is None else shares)
