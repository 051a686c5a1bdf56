"""Gathers what run.sh left in a folder into gpu.json and gpu.md: `python tests/gpu/report.py OUT`."""

import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import torch

from imagenet_opt.display.table import Column, Table
from imagenet_opt.machine import usable_cpus, versions
from imagenet_opt.run.loggers.metrics_rows import read_rows

AIMS = {"end to end": 0.97, "factor": 3.0, "cifar10": 0.94, "resize ms": 2.0, "no wait": 1.0}
LADDERS = ("ladder", "short_ladder")
STUDIES = (*LADDERS, "anatomy")
ACCURACY, BUSY, RATE = "val/acc1", "gpu/utilization_percent", "throughput/images_per_second"
TESTS = ("quick_tests", "slow_tests")
NO_WAIT_TESTS = ("test_the_step_never_waits_for_the_device", "test_micro_batches_and_clipping_do_not_wait_either")
PARTS = ("first", "quick_tests", "small_card", "run", "anatomy", "short_ladder", "slow_tests", "ladder", "cifar10")
"""As run.sh names them."""


@dataclass(frozen=True)
class Figure:
    """value: None where it was not measured. aim: the least that it should be, or the most; None for no aim."""

    what: str
    value: float | None
    shape: str
    aim: float | None = None
    is_most: bool = False

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not run"
        if self.aim is None:
            return ""
        return "pass" if (self.value <= self.aim if self.is_most else self.value >= self.aim) else "FAIL"


@dataclass(frozen=True)
class Speed:
    """Medians. alone: images per second of the network alone; full: end to end. busy: share of the time."""

    name: str
    alone: float
    full: float
    busy: float


def gathered(out: Path) -> dict[str, Any]:
    studies = {name: json.loads(p.read_text()) for name in STUDIES if (p := out / name / "study.json").exists()}
    curve = [[step, row[ACCURACY]] for step, row in read_rows(out / "cifar10" / "metrics.csv") if ACCURACY in row]
    run = read_json(out / "run" / "summary.json", {})
    ladders = {name: speeds(studies[name]) for name in LADDERS if name in studies}
    first, tests = read_json(out / "first.json", {}), {}
    for part in TESTS:
        tests |= outcomes(out / f"{part}.xml")
    probed = [*first_figures(first), no_wait(tests)]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        "cpus": usable_cpus(),
        "versions": versions(),
        "images": read_json(out / "images.json", None),
        "parts": parts(out),
        "figures": [asdict(one) | {"verdict": one.verdict} for one in [*probed, *figures(ladders, run, curve)]],
        "first": first,
        "small_card": read_json(out / "small_card.json", []),
        "run": run,
        "cifar10_curve": curve,
        "studies": studies,
        "tests": tests,
    }


def read_json(file: Path, missing: Any) -> Any:
    return json.loads(file.read_text()) if file.exists() else missing


def first_figures(first: dict[str, Any]) -> list[Figure]:
    """Of first.py's probes; a probe that failed has no numbers."""

    def found(probe: str, *path: str) -> float | None:
        value: Any = first.get(probe, {})
        for name in path:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        return float(value) if isinstance(value, (bool, int, float)) else None

    rows = ("eager, bfloat16", "eager, float16", "compiled", "compiled, CUDA graph")
    return [
        Figure("first: region decode in a forked worker", found("fork", "is_region_decode"), "{:.0f}", 1.0),
        Figure(
            f"first: resize kernel, {found('resize', 'num_crops') or 384:.0f} crops, ms",
            found("resize", "ms"),
            "{:.2f}",
            AIMS["resize ms"],
            is_most=True,
        ),
        Figure("first: resize kernel, largest difference", found("resize", "largest_difference"), "{:.3f}"),
        Figure("first: copy to the device, GB/s", found("resize", "copy_gb_per_second"), "{:.1f}"),
        Figure("first: EMA of all weights, ms", found("ema", "ms"), "{:.2f}"),
        *(Figure(f"first: step, {row}, images/s", found("steps", row, "images_per_second"), "{:,.0f}") for row in rows),
        *(Figure(f"first: step, {row}, GiB", found("steps", row, "gib"), "{:.1f}") for row in rows),
    ]


def no_wait(tests: dict[str, str]) -> Figure:
    hows = [how for name, how in tests.items() if name.partition("::")[2] in NO_WAIT_TESTS]
    share = None if not hows else sum(how == "passed" for how in hows) / len(NO_WAIT_TESTS)
    return Figure("quick_tests: steps that read nothing back from the device", share, "{:.0%}", AIMS["no wait"])


def parts(out: Path) -> dict[str, str]:
    """What became of each, by name; of one that was run several times, the last time."""
    said = {name: f"not run, `run.sh --only {name} OUT` runs it" for name in PARTS}
    said["cifar10"] = "not run, `run.sh --cifar10 OUT CIFAR10` runs it"
    file = out / "parts.txt"
    for line in file.read_text().splitlines() if file.exists() else ():
        name, status, seconds = line.split()
        cut = "out of time, the same command resumes"
        how = {"0": "done", "124": cut, "137": cut}.get(status, f"failed, status {status}")
        said[name] = f"{how}, {seconds} s"
    return said


def speeds(ladder: dict[str, Any]) -> list[Speed | None]:
    """Of each row, None where it was not measured; the first one is the start."""
    return [speed(row["name"], row.get("speeds")) for row in ladder["tables"][0]["data"]["rows"]]


def speed(name: str, rounds: list[dict[str, float]] | None) -> Speed | None:
    if not rounds:
        return None
    alone, full, busy = (median(one[what] for one in rounds) for what in ("compute", "full", "busy"))
    return Speed(name, alone, full, busy)


def figures(ladders: dict[str, list[Speed | None]], run: dict[str, float], curve: list[list[float]]) -> list[Figure]:
    """Each with the part that it is of. The whole run is compared with the short ladder's last row, which trains as it
    does."""
    ladder = next(iter(ladders), "ladder or short_ladder")
    rows = [one for one in ladders.get(ladder, []) if one]
    start, best = rows[0] if rows else None, max(rows, key=lambda one: one.alone, default=None)
    as_run = ladders.get("short_ladder", [None])[-1]
    rate, busy = run.get(RATE), run.get(BUSY)
    name = best.name if best else "all on"
    alone, full = best and best.alone, best and best.full
    top1 = max((accuracy for _, accuracy in curve), default=None)

    def share(one: float | None, whole: float | None) -> float | None:
        return None if one is None or whole is None else one / whole

    beside = f"short_ladder's network alone, {as_run.name if as_run else 'all on'}"
    return [
        Figure(f"{ladder}: network alone, start, images/s", start and start.alone, "{:,.0f}"),
        Figure(f"{ladder}: network alone, {name}, images/s", alone, "{:,.0f}"),
        Figure(f"{ladder}: that over the start", share(alone, start and start.alone), "{:.2f} x", AIMS["factor"]),
        Figure(f"{ladder}: end to end, {name}, images/s", full, "{:,.0f}"),
        Figure(f"{ladder}: that over its network alone", share(full, alone), "{:.1%}", AIMS["end to end"]),
        Figure(f"{ladder}: GPU busy end to end, by its kernels", best and best.busy, "{:.0%}"),
        Figure("run: a whole run of train.py, images/s", rate, "{:,.0f}"),
        Figure(f"run: that over {beside}", share(rate, as_run and as_run.alone), "{:.1%}", AIMS["end to end"]),
        Figure("run: GPU busy, by NVML", share(busy, 100.0), "{:.0%}"),
        Figure("cifar10: best top-1 of validation", top1, "{:.2%}", AIMS["cifar10"]),
    ]


def outcomes(junit: Path) -> dict[str, str]:
    """Each test's name and passed, failed or skipped."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase") if junit.exists() else ():
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds.pop() if kinds else "passed"
    return found


def markdown(report: dict[str, Any]) -> str:
    lines = [f"{report['date']}, {report['device']}, {report['cpus']} CPUs, torch {report['versions']['torch']}", ""]
    if images := report["images"]:
        kind = "drawn images" if images["is_drawn"] else "JPEGs"
        lines += [
            f"ResNet-50 at 224 pixels. {images['num_files']} {kind} under {images['num_links']} names, all in memory: "
            "what storage would add is not in these numbers.",
            "",
        ]
    lines += table("figure", "value", "aim", "verdict")
    for figure in report["figures"]:
        value, aim = (None if figure[key] is None else figure["shape"].format(figure[key]) for key in ("value", "aim"))
        lines.append(f"| {figure['what']} | {value or '-'} | {aim or ''} | {figure['verdict']} |")
    lines += [
        "",
        *table("part", "what became of it"),
        *(f"| {name} | {how} |" for name, how in report["parts"].items()),
    ]
    if report["small_card"]:
        lines += ["", "## On 22 GiB of the card", ""]
        lines += table("trial", "what became of it", "images/s", "peak GiB", "what the run said")
        lines += map(small_card_row, report["small_card"])
    for name, study in report["studies"].items():
        lines += ["", f"## {name}: {study['command']}", "", *map(table_markdown, study["tables"])]
    if report["cifar10_curve"]:
        lines += ["", "## CIFAR-10", "", *table("step", "top-1")]
        lines += [f"| {step} | {accuracy:.2%} |" for step, accuracy in report["cifar10_curve"]]
    if report["tests"]:
        lines += ["", "## Tests", "", *table("test", "outcome")]
        lines += [f"| {name} | {how} |" for name, how in report["tests"].items()]
    return "\n".join(lines) + "\n"


def small_card_row(trial: dict[str, Any]) -> str:
    how = {0: "done", None: "cut short"}.get(trial["status"], f"failed, status {trial['status']}")
    rate, peak = (
        "-" if trial[key] is None else shape.format(trial[key])
        for key, shape in (("images_per_second", "{:,.0f}"), ("peak_gib", "{:.1f}"))
    )
    said = "<br>".join(trial["said"]).replace("|", "\\|")
    return f"| {trial['name']} | {how}, {trial['seconds']:.0f} s | {rate} | {peak} | {said} |"


def table(*headings: str) -> list[str]:
    return [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]


def table_markdown(table: dict[str, Any]) -> str:
    columns = tuple(Column(**column) for column in table["columns"])
    return Table(table["title"], columns, tuple(map(tuple, table["rows"])), tuple(table["notes"])).markdown()


def main(out: Path) -> None:
    report = gathered(out)
    (out / "gpu.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "gpu.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
