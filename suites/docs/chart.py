"""Draws docs/peers-light.svg and docs/peers-dark.svg from docs/peers.json, and writes the table of the results.

python -m suites.docs.chart
"""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs/peers.json"
RESULTS = ROOT / "docs/journal/loader.md"
PICTURES = {name: ROOT / f"docs/peers-{name}.svg" for name in ("light", "dark")}
COLOURS = {
    "light": {"ink": "#1f2733", "soft": "#5f6b7c", "accent": "#2b6cb0", "other": "#a9b2bf"},
    "dark": {"ink": "#e4e8ee", "soft": "#98a2b3", "accent": "#6cabe8", "other": "#525c6a"},
}
"""Those of src/imagenet_opt/display/style.css, with a grey for the bars of others."""
WIDTH = 480
"""Units of the drawing: small, so that its letters are readable where the picture is 400 px wide."""
_LONGEST, _FIRST, _ROW, _LINE = 405, 50, 46, 17
"""Length of the longest bar; place of the first row; height of a row and of a line of the caption."""
_TABLE = re.compile(r"(?<=## The same bytes for all\n\n)`imagenet-opt.*?\n(?=\n\| ratio)", re.DOTALL)


def chart(measured: dict[str, Any], scheme: str) -> str:
    """The bars of all rows that have a label, the fastest first, as SVG."""
    rows = sorted((row for row in measured["rows"] if "label" in row), key=lambda row: -row["rate"])
    unit = _LONGEST / max(row["high"] for row in rows)
    caption_y = _FIRST + _ROW * len(rows) + 6
    caption = textwrap.wrap(
        f"{measured['date']}, {measured['machine']}; {measured['images']}; {measured['statistics']} (lines). "
        f"{measured['versions']}.", 74
    )  # fmt: skip
    caption += textwrap.wrap(measured["command"], 70)
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return pages.get_template("peers.svg").render(
        title=measured["title"],
        bars=[_bar(row, _FIRST + _ROW * place, unit) for place, row in enumerate(rows)],
        width=WIDTH,
        height=caption_y + _LINE * len(caption),
        caption=caption,
        caption_y=caption_y,
        colours=COLOURS[scheme],
    )


def _bar(row: dict[str, Any], y: int, unit: float) -> dict[str, Any]:
    places = {"length": row["rate"], "low": row["low"], "high": row["high"]}
    drawn = {name: round(rate * unit, 1) for name, rate in places.items()}
    return {"label": row["label"], "ours": row.get("ours"), "rate": row["rate"], "y": y} | drawn | {
        "end": round(drawn["high"] + 8, 1)
    }  # fmt: skip


def table(measured: dict[str, Any]) -> str:
    """The paragraph and the table of docs/journal/loader.md, with all rows in the order of the file."""
    text = (
        f"`{measured['command']}`, {measured['date']}, {measured['machine']}; {measured['versions']}. "
        f"Images: {measured['images']}; {measured['statistics']}. The ratios' intervals hold at once with 95 %."
    )
    lines = [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]
    lines += ["| row | images/s | interval | CPU ms/image |", "|---|---|---|---|"]
    for row in measured["rows"]:
        lines.append(f"| {row['name']} | {row['rate']} | {row['low']} to {row['high']} | {row['cpu_ms']} |")
    return "\n".join(lines) + "\n"


def results(text: str, measured: dict[str, Any]) -> str:
    """docs/journal/loader.md with the paragraph and the table of the section."""
    return _TABLE.sub(lambda _: table(measured), text)


if __name__ == "__main__":
    content = json.loads(DATA.read_text())
    for scheme, picture in PICTURES.items():
        picture.write_text(chart(content, scheme))
    RESULTS.write_text(results(RESULTS.read_text(), content))
