"""The report as one HTML page that needs no network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from imagenet_opt.config.trust import entries
from imagenet_opt.display.page import html_of, render_page
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.report import charts
from imagenet_opt.report.numbers import careful, differences, show, tiles
from imagenet_opt.report.run_files import Record
from imagenet_opt.report.timeline_chart import timeline

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


def render(record: Record, baseline: Record | None = None) -> str:
    """The whole page, without the parts that nothing is known for.

    jinja2 escapes texts of the page; figures escape their own texts; plotly writes data without < and >.
    """
    figures = _figures(record)
    curves = [name for name in charts.CURVES if name in figures]
    filled = {
        "step": {"waterfall", "phases"} & figures.keys(),
        "steps": "histogram" in figures,
        "curves": curves,
        "rules": record.diagnosis,
        "baseline": baseline,
    }
    headings = PARTS if record.diagnosis else PARTS | {"ceilings": "The run"}
    return render_page(
        Path(__file__).with_name("page.html"),
        title=f"{record.name} (simulated)" if record.simulated else record.name,
        finding=finding(record),
        plotly=True,
        record=record,
        baseline=baseline,
        simulated=record.simulated,
        tiles=tiles(record),
        parts={part: heading for part, heading in headings.items() if filled.get(part, True)},
        figures={name: html_of(figure, id=f"plot-{name}") for name, figure in figures.items()},
        curves=curves,
        careful=careful(record, baseline) if baseline else [],
        rows=differences(record, baseline) if baseline else {},
        about=about(record),
        diagnosis=record.diagnosis,
        **_verdict(record.diagnosis) if record.diagnosis else {},
    )


def finding(record: Record) -> str:
    """The page's first sentence. Reasons for a missing verdict are long, and name commands: they follow below."""
    if record.diagnosis is not None:
        judged = record.diagnosis.is_judged
        return record.diagnosis.sentence if judged else "Not judged: an experiment failed that the verdict needs."
    rate, wait = (record.summary.get(f"throughput/{name}") for name in ("images_per_second", "data_wait_fraction"))
    if not isinstance(rate, int | float):
        return f"{record.name} has no measured speed."
    waits = f" and waits for data {wait:.1%} of the time" if isinstance(wait, int | float) else ""
    return f"{record.name} trains on {rate:,.0f} images/s{waits}."


def _verdict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Values of the page that only a diagnosis has. findings: by outcome, fired ones by falling gain."""
    explained, to_copy = diagnosis.explanation, ("command", "")
    fired, quiet, blind = ([f for f in diagnosis.findings if f.fired is outcome] for outcome in (True, False, None))
    return {
        "cause": diagnosis.meaning,
        "explanation": [(label, text) for label, text in explained if label not in to_copy],
        "commands": [text for label, text in explained if label in to_copy],
        "next_stage": diagnosis.measurements.stages.get(diagnosis.next_stage or "", diagnosis.next_stage),
        "sure": diagnosis.confidence,
        "findings": {"fired": sorted(fired, key=lambda finding: -(finding.gain or 0)), "quiet": quiet, "blind": blind},
    }


def _figures(record: Record) -> dict[str, go.Figure]:
    """The figures that have data, by their name in page.html."""
    diagnosis, simulated = record.diagnosis, record.simulated is not None
    drawn: dict[str, go.Figure] = {}
    if diagnosis is not None:
        measured = {
            "ceilings": diagnosis.measurements.ceilings,
            "waterfall": diagnosis.waterfall,
            "phases": diagnosis.measurements.phases,
        }
        drawn = {name: getattr(charts, name)(diagnosis) for name, data in measured.items() if data}
        curves = [name for name in charts.CURVES if diagnosis.measurements.curves.get(name)]
        drawn |= {name: charts.curve(diagnosis, name) for name in curves}
    if record.timeline is not None:
        drawn["timeline"] = timeline(record.timeline, simulated=simulated)
    if len(record.metrics) > 1 and (figure := charts.over_steps(record.metrics, simulated=simulated)) is not None:
        drawn["metrics"] = figure
    if record.steps[0]:
        drawn["histogram"] = charts.histogram(*record.steps, simulated=simulated)
    return drawn


def about(record: Record) -> Mapping[str, list[tuple[str, str]]]:
    """Tables of names and values by heading; some may be empty."""
    diagnosis = record.diagnosis
    known: dict[str, Mapping[str, Any]] = {}
    if diagnosis is not None:
        known = {
            "Machine": diagnosis.measurements.machine,
            "Versions": diagnosis.measurements.versions,
            "Trial of the remedy": diagnosis.trial or {},
        }
    known |= {"Summary of the run": record.summary, "Configuration": record.config}
    return {name: [(key, show(value)) for key, value in entries(facts, lists=False)] for name, facts in known.items()}
