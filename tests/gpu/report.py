"""Gathers what run.sh left in a folder into gpu.json and gpu.md: `python tests/gpu/report.py OUT`."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import torch

from imagenet_opt.machine import usable_cpus, versions

RUNS = ("baseline", "aggressive")
SHOWN = {
    "throughput/images_per_second": "images/s",
    "throughput/data_wait_fraction": "data wait",
    "gpu/utilization_percent": "GPU busy %",
    "memory/peak_gib": "peak GiB",
    "startup/compile_seconds": "compile s",
}


def outcomes(junit: Path) -> dict[str, str]:
    """Each test's name and passed, failed or skipped."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds.pop() if kinds else "passed"
    return found


def main(out: Path) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    summaries = {run: json.loads(p.read_text()) for run in RUNS if (p := out / run / "summary.json").exists()}
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device,
        "cpus": usable_cpus(),
        "versions": versions(),
        "command": "tests/gpu/run.sh OUT",
        "tests": outcomes(out / "tests.xml") if (out / "tests.xml").exists() else {},
        "runs": summaries,
    }
    (out / "gpu.json").write_text(json.dumps(report, indent=2) + "\n")
    lines = [f"{report['date']}, {device}, {report['cpus']} CPUs, torch {report['versions']['torch']}", ""]
    lines += ["| run | " + " | ".join(SHOWN.values()) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    for run, summary in summaries.items():
        lines.append(f"| {run} | " + " | ".join(f"{summary[k]:.3g}" if k in summary else "" for k in SHOWN) + " |")
    lines += ["", "| test | outcome |", "|---|---|"] + [f"| {name} | {how} |" for name, how in report["tests"].items()]
    (out / "gpu.md").write_text("\n".join(lines) + "\n")
    print((out / "gpu.md").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
