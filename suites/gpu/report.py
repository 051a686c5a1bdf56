"""Writes the queue's results into docs/results_gpu.md: `python -m suites.gpu.report`.

The part of the page below the line QUEUE is written anew: a table for each result, and a list of what is due.
"""

from pathlib import Path
from statistics import median
from typing import Any

import yaml

from suites.gpu.run import CUT, is_done, known

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "results_gpu.md"
QUEUE = "<!-- Below this line suites/gpu/report.py writes. -->"
RATE, WAIT = "throughput/images_per_second", "throughput/data_wait_fraction"
COLUMNS = {
    RATE: "images/s",
    WAIT: "waiting for data",
    "val/acc1": "top-1",
    "memory/peak_gib": "GiB",
    "startup/compile_seconds": "compile, s",
}
PERCENT = (WAIT, "val/acc1")


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (headings, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return [lines[0], "|---" * len(headings) + "|", *lines[1:], ""]


def shown(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(shown(key, one) for one in value)
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2%}" if key in PERCENT else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def of_rows(rows: dict[str, list[dict[str, Any]]], words: dict[str, str]) -> list[str]:
    """Each row's median over the rounds, and its images per second over the first row's of the same round. words: the
    overrides of each row."""
    first = {told["round"]: told[RATE] for told in next(iter(rows.values())) if RATE in told}
    keys = [key for key in COLUMNS if any(key in told for rounds in rows.values() for told in rounds)]
    lines = []
    for name, rounds in rows.items():
        pairs = [(told[RATE], first[told["round"]]) for told in rounds if RATE in told and told["round"] in first]
        ratios = ", ".join(f"{rate / of_first:.3f}" for rate, of_first in pairs)
        numbers = {key: [told[key] for told in rounds if key in told] for key in keys}
        cells = [shown(key, median(values)) if values else "-" for key, values in numbers.items()]
        errors = [told["error"] for told in rounds if "error" in told]
        lines.append(
            [
                f"{name}: `{words[name]}`" if words.get(name) else name,
                *cells,
                "; ".join(filter(None, (ratios, *errors))),
            ]
        )
    return table(["row", *(COLUMNS[key] for key in keys), "x the first row, by round"], lines)


def flat(numbers: dict[str, Any], before: str = "") -> list[list[str]]:
    rows = []
    for key, value in numbers.items():
        name = f"{before}{key}"
        rows += flat(value, f"{name}: ") if isinstance(value, dict) else [[name, shown(key, value)]]
    return rows


def section(result: dict[str, Any]) -> list[str]:
    """What a job measured, where, and how; the end of its log where it has no numbers."""
    job, machine, numbers = result["job"], result["machine"], dict(result["numbers"])
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    facts = [machine[name] for name in ("card", "memory", "power_limit") if name in machine]
    facts += [f"driver {machine.get('driver')}", f"{machine['cpus']} CPUs", versions, machine.get("commit", "")]
    how = f" **It did not end well: status {result['status']}.**" if result["status"] else ""
    if result["status"] == CUT and result["numbers"]:
        how = " It was cut at its limit; these are the numbers until then."
    rows = numbers.pop("rows", None)
    return [
        *(f"### {job['name']}", ""),
        *(f"{job['purpose'][0].upper()}{job['purpose'][1:]}.{how} Decides: {job['decides']}.", ""),
        *(f"{', '.join(filter(None, facts))}, {result['date'][:10]}, {result['seconds']:.0f} s.", ""),
        *(f"    {line}" for line in (*job["command"].strip().splitlines(), *filter(None, [job.get("overrides")]))),
        "",
        *(of_rows(rows, job.get("rows", {})) if rows else []),
        *(table(["what", "value"], flat(numbers)) if numbers else []),
        *([] if result["numbers"] else [*(f"    {line}" for line in result["tail"]), ""]),
    ]


def page(results: dict[str, dict[str, Any]], jobs: list[dict[str, Any]]) -> str:
    """The results in the order of the jobs, and the jobs that have none of their version."""
    order = [job["name"] for job in jobs]
    told = [one for one in results.values() if one["job"]["name"] in order]
    told.sort(key=lambda one: (order.index(one["job"]["name"]), one["date"]))
    done = {(one["job"]["name"], one["job"].get("version", 1)) for one in told if is_done(one)}
    due = [job for job in jobs if (job["name"], job.get("version", 1)) not in done]
    lines = ["", *(line for one in told for line in section(one))]
    if due:
        rows = [[job["name"], str(job["seconds"]), job["purpose"], job["decides"]] for job in due]
        lines += ["These jobs have not ended well on any GPU, the most valuable first.", ""]
        lines += table(["job", "at most, s", "what it measures", "what it decides"], rows)
    return "\n".join(lines)


def main() -> None:
    before, line, _ = PAGE.read_text().partition(QUEUE)
    if not line:
        raise SystemExit(f"{PAGE} has no line {QUEUE}")
    jobs = yaml.safe_load((HERE / "jobs.yaml").read_text())
    PAGE.write_text(f"{before}{line}\n{page(known(HERE / 'results'), jobs)}")


if __name__ == "__main__":
    main()
