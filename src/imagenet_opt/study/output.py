"""What a study leaves: study.md, study.html and study.json."""

import html
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from imagenet_opt.atomic_file import write_whole
from imagenet_opt.display.table import Plot, Sheet
from imagenet_opt.display.terminal_table import strict_json
from imagenet_opt.errors import ConfigError
from imagenet_opt.study.request import KINDS, Request


def write_outputs(sheets: list[Sheet], request: Request, facts: dict[str, Any], file: Path | None) -> None:
    """study.md, study.html and study.json in the study's folder; the last one in `file` too. Raises ConfigError."""
    host, command = facts["machine"], facts["command"]
    line = f"{facts['date']}, {host['gpu'] or host['cpu']}, {host['usable_cpus']} CPUs, "
    line += ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = f"## {request.title}\n\n{line}\n\n    {command}\n\n" + "\n".join(sheet.markdown() for sheet in sheets)
    counts = KINDS[request.kind].flags
    asked = {name: getattr(request, name) for name in ("repeats", "seconds") if name in counts}
    whole = strict_json({"study": request.name} | asked | facts | {"sheets": [asdict(sheet) for sheet in sheets]})
    _write(request.folder / "study.md", text, "--folder")
    _write(request.folder / "study.json", whole, "--folder")
    _write(request.folder / "study.html", page(sheets, request, f"{line}\n{command}"), "--folder")
    if file is not None:
        _write(file, whole, "--json")
    print(f"{request.folder}/study.html has the plots, study.md and study.json the numbers", file=sys.stderr)


def _write(file: Path, text: str, flag: str) -> None:
    """Raises ConfigError. flag: what chooses the place."""
    try:
        write_whole(file, text)
    except OSError as error:
        reason = f"the tables above could not be written to {file}: {error.strerror}"
        raise ConfigError(f"{reason}; free space or choose another {flag}") from error


def page(sheets: list[Sheet], request: Request, facts: str) -> str:
    """One self-contained page: each sheet's plots over its table."""
    import plotly.offline
    from jinja2 import Environment

    template = Environment(autoescape=True).from_string(Path(__file__).with_name("study_page.html").read_text())
    plots = [[figure(plot).to_json() for plot in sheet.plots] for sheet in sheets]
    return template.render(
        title=request.title,
        facts=facts,
        sheets=list(zip(sheets, plots, strict=True)),
        plotly=plotly.offline.get_plotlyjs(),
    )


def figure(plot: Plot) -> Any:
    """The plot with plotly; intervals as error bars."""
    import plotly.graph_objects as go

    shapes: dict[str, Any] = {"bars": go.Bar, "lines": go.Scatter}
    found = go.Figure(layout={"title": plot.title, "xaxis_title": plot.x, "yaxis_title": plot.y, "height": 420})
    found.update_layout(template="plotly_white", margin={"t": 50, "l": 60, "r": 20})
    for series in plot.series:
        errors = None
        if series.low:
            errors = {
                "type": "data",
                "symmetric": False,
                "array": [high - y for high, y in zip(series.high, series.y, strict=True)],
                "arrayminus": [y - low for low, y in zip(series.low, series.y, strict=True)],
            }
        x = [html.escape(one) if isinstance(one, str) else one for one in series.x]
        found.add_trace(shapes[plot.kind](name=html.escape(series.name), x=x, y=series.y, error_y=errors))
    return found
