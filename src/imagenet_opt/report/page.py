"""The report as one HTML page that needs no network."""

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
    "steps": "Step times",
    "curves": "Effect of more workers, requests and cache",
    "rules": "Rules",
    "baseline": "Against a baseline",
    "about": "Machine, versions, configuration",
}
"""Anchor -> heading."""
EMPTY = "the doctor has no measurement for this part"


def render(record: Record, baseline: Record | None = None, *, price_per_hour: float | None = None) -> str:
    """The whole page. price_per_hour: price of the machine in dollars.

    jinja2 escapes texts of the page; figures escape their own texts; plotly writes data without < and >.
    """
    diagnosis = record.diagnosis
    drawn = figures(record, baseline)
    return render_page(
        Path(__file__).with_name("page.html"),
        title=_title(record),
        plotly=True,
        record=record,
        baseline=baseline,
        diagnosis=diagnosis,
        cause=meaning(diagnosis) if diagnosis else None,
        explanation=explanation(diagnosis) if diagnosis else [],
        least_stage=least_stage(diagnosis) if diagnosis else None,
        next_stage=STAGES.get(diagnosis.next_stage, diagnosis.next_stage)
        if diagnosis and diagnosis.next_stage
        else None,
        sure=confidence(diagnosis) if diagnosis else None,
        simulated=record.simulated,
        tiles=tiles(record, price_per_hour),
        parts=PARTS,
        empty=EMPTY,
        figures={name: _html(name, figure) for name, figure in drawn.items()},
        curves=[name for name in charts.CURVES if name in drawn],
        findings=_by_outcome(diagnosis) if diagnosis else {},
        careful=careful(record, baseline) if baseline else [],
        rows=differences(record, baseline) if baseline else {},
        about=about(record),
        packed=pack(record.timeline, simulated=record.simulated is not None) if record.timeline else None,
    )


def figures(record: Record, baseline: Record | None = None) -> dict[str, "go.Figure"]:
    """The figures that have data, by their name in page.html."""
    diagnosis = record.diagnosis
    drawn: dict[str, go.Figure] = {}
    if diagnosis is not None:
        drawn = _of_diagnosis(diagnosis)
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


def _of_diagnosis(diagnosis: Diagnosis) -> dict[str, "go.Figure"]:
    drawn = {"ceilings": charts.ceilings(diagnosis)} if diagnosis.measurements.ceilings else {}
    if diagnosis.waterfall:
        drawn["waterfall"] = charts.waterfall(diagnosis)
    if diagnosis.measurements.phases:
        drawn["phases"] = charts.phases(diagnosis)
    return drawn | {
        name: charts.curve(diagnosis, name) for name in charts.CURVES if diagnosis.measurements.curves.get(name)
    }


def _html(name: str, figure: "go.Figure") -> Markup:
    bar: dict[str, Any] = {"displayModeBar": name == "timeline", "displaylogo": False}
    if name == "timeline":  # only the visible part is drawn, so plotly cannot scale to all data
        bar |= {"doubleClick": "reset", "modeBarButtonsToRemove": ["autoScale2d"]}
    return html_of(figure, id=f"plot-{name}", **bar)


def _title(record: Record) -> str:
    return f"{record.name} (simulated)" if record.simulated else record.name


def _by_outcome(diagnosis: Diagnosis) -> dict[str, list[Finding]]:
    """Findings by outcome: fired (largest gain first), quiet, blind (not checked)."""
    groups: dict[str, list[Finding]] = {"fired": [], "quiet": [], "blind": []}
    for finding in diagnosis.findings:
        groups["blind" if finding.fired is None else "fired" if finding.fired else "quiet"].append(finding)
    groups["fired"].sort(key=lambda finding: -(finding.gain or 0))
    return groups


def about(record: Record) -> Mapping[str, list[tuple[str, str]]]:
    """Tables of names and values by heading; some may be empty."""
    diagnosis = record.diagnosis
    known: dict[str, Mapping[str, Any]] = {}
    if diagnosis is not None:
        known = {
            "Machine": diagnosis.measurements.machine,
            "Versions": diagnosis.measurements.versions,
            "Confidence": _certainty(diagnosis),
        }
        known |= {"Trial of the remedy": diagnosis.trial or {}}
        known |= {"Measured beside the stages": diagnosis.measurements.facts.known()}
    known |= {"Summary of the run": record.summary, "Configuration": record.config}
    return {name: [(key, show(value)) for key, value in leaves(facts)] for name, facts in known.items()}


def _certainty(diagnosis: Diagnosis) -> dict[str, Any]:
    level, doubts = confidence(diagnosis)
    known: dict[str, Any] = {"confidence": level, "doubts": "; ".join(doubts) or "none"}
    unexplained = diagnosis.unexplained
    shares = {"measured / expected": diagnosis.efficiency, "unexplained": unexplained}
    return known | ({} if unexplained is None else shares)
