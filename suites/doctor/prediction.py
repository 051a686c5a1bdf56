"""Compares the expected rate of a run with its measured rate: `python -m suites.doctor.prediction SAMPLE OUT`.

The configurations differ in their lowest ceiling. Each examination writes one JSON file to OUT; existing files stay.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from suites.doctor.cases import QUICK, Case, huge_images
from suites.doctor.suite import forked

CONFIGURATIONS = {
    "device 100 img/s": Case("", ("callbacks.rehearsal.images_per_second=100",)),
    "device 200 img/s, batch 32": Case("", ("callbacks.rehearsal.images_per_second=200", "data.batch_size=32")),
    "device 400 img/s, batch 64": Case("", ("callbacks.rehearsal.images_per_second=400", "data.batch_size=64")),
    "1 worker": Case("", (*QUICK, "data.num_workers=1")),
    "2 workers": Case("", (*QUICK, "callbacks.rehearsal.images_per_second=3000")),
    "2 workers that resize": Case(
        "", (*QUICK, "callbacks.rehearsal.images_per_second=3000", "data.resize_on=worker", "data.image_size=160")
    ),
    "100 ms, 16 in flight": Case("", ("data.reads_in_flight=8",), {"latency": 0.1}),
    "200 ms, 16 in flight": Case("", ("data.reads_in_flight=8",), {"latency": 0.2}),
    "50 ms, 2 in flight": Case("", ("data.reads_in_flight=1",), {"latency": 0.05}),
    "10 MB/s": Case("", (), {"bytes_per_second": 10e6}),
    "20 MB/s": Case("", (), {"bytes_per_second": 20e6}),
    "images of 12 MP": Case("", (), images=huge_images),
}
"""Name -> the run, without a cause."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="a folder with a folder of JPEGs for each class")
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", default="30s", help="of an examination")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, case in CONFIGURATIONS.items():
        file = options.out.resolve() / f"{name.replace('/', ' a ')}.json"
        if not file.exists():
            print(f"{name}: status {forked(case, options.sample.resolve(), file, options.budget)}", flush=True)
    print(table(options.out))


def table(out: Path) -> str:
    """Markdown: expected and measured images per second, and the error of the expected rate."""
    rows = ["| run | verdict | expected | measured | error |", "|---|---|---|---|---|"]
    errors = []
    for file in sorted(out.glob("*.json")):
        diagnosis = json.loads(file.read_text())
        expected, measured = diagnosis["expected"], diagnosis["measured"]
        error = expected / measured - 1
        errors.append(abs(error))
        rates = f"{expected:.0f} | {measured:.0f} | {error:+.0%}"
        rows.append(f"| {file.stem.replace(' a ', '/')} | {diagnosis['cause']} | {rates} |")
    return "\n".join([*rows, "", f"median {median(errors):.0%}, worst {max(errors):.0%} of {len(errors)}"])


if __name__ == "__main__":
    main()
