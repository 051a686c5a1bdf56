"""How a rival, TraceML, judges the doctor's cases: `python -m suites.doctor.rival SAMPLE OUT`.

Each case is a run of train.py under `traceml run` (https://github.com/traceopt-ai/traceml), with its callback for
Lightning as suites/doctor/traced.py sets it up, or with the one that it adds by itself: --zero-code. OUT gets one JSON
file for each run; runs that are there already are not made again. Needs `pip install traceml-ai`, which the project
does not depend on.

On a CPU it times with the host's clock. The host waits for the simulated device inside the network's forward, which
TraceML counts as compute; where a metric or callback reads a value, it waits in what TraceML calls residual.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from suites.doctor.cases import CASES, arranged
from suites.faults.not_tried import NotTried

_LIMIT_SECONDS = 240
_CALLBACK = ("allow_targets=[suites]", "+callbacks.traceml={_target_: suites.doctor.traced.Traced}")
_ROOT = Path(__file__).parents[2]
_COMPUTE = ("COMPUTE_BOUND", "NO_CLEAR_PERFORMANCE_BOTTLENECK")
_KINDS = {
    "healthy": _COMPUTE,
    "slow_gpu": _COMPUTE,
    "host_sync": ("RESIDUAL_HEAVY",),
    "slow_logging": ("RESIDUAL_HEAVY",),
    "checkpoint_stall": ("RESIDUAL_HEAVY",),
}
"""Verdicts that are right for a cause; INPUT_BOUND for the others, which are of the data."""
_WORDS = {
    "storage_latency": "storage",
    "storage_bandwidth": "storage",
    "lazy_mount": "storage",
    "few_workers": "workers",
    "small_prefetch": "prefetch",
    "slow_logging": "logging",
    "checkpoint_stall": "checkpointing",
}
"""What TraceML 0.5 calls a cause where it advises; it has no word for the others."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="a folder with a folder of JPEGs for each class")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--zero-code", action="store_true", help="leave it to TraceML what is timed")
    parser.add_argument("--only", default="", help="NAME,... of cases")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in CASES if not options.only or name in options.only.split(",")]
    for number in range(options.rounds):
        for name in names:
            file = options.out.resolve() / f"{name.replace(' ', '_')}-{number:02}.json"
            if not file.exists():
                found = judged(name, options.sample.resolve(), file, options.steps, zero_code=options.zero_code)
                file.write_text(json.dumps(found, indent=1))
                print(f"{number} {name}: {found['status']}", flush=True)
    print(table(options.out))


def judged(name: str, sample: Path, file: Path, num_steps: int, *, zero_code: bool) -> dict[str, Any]:
    """TraceML's verdict on a run of the case, in its words."""
    with tempfile.TemporaryDirectory() as scratch, file.with_suffix(".log").open("w") as log:
        try:
            with arranged(CASES[name], sample, Path(scratch)) as overrides:
                rest = [f"data.cache_dir={scratch}/cache", f"hydra.run.dir={scratch}/out"]
                rest += ["trainer.limit_val_batches=0", f"trainer.max_steps={num_steps}"]
                rest += [] if zero_code else _CALLBACK
                command = [*_traceml(scratch), *overrides, *rest]
                subprocess.run(command, cwd=_ROOT, stdout=log, stderr=log, check=True)
        except (NotTried, subprocess.CalledProcessError) as reason:
            return {"case": name, "kind": "", "status": f"no verdict: {reason}", "summary": "", "action": ""}
        summary = json.loads((Path(scratch) / "run" / "final_summary.json").read_text())
    verdict = summary["primary_diagnosis"]
    sections = {part: summary[part]["diagnosis"] for part in ("system", "process", "step_time", "step_memory")}
    return {"case": name, "traceml": version("traceml-ai"), **verdict, "sections": sections}


def _traceml(logs_dir: str) -> list[str]:
    """The command, which overrides of the trainer follow. Ended by SIGTERM, it ends what it has started."""
    limited = ["timeout", str(_LIMIT_SECONDS), sys.executable, "-m", "traceml_ai.launcher.cli"]
    options = ["--logs-dir", logs_dir, "--run-name", "run", "--no-save-training-output"]
    return [*limited, "run", str(_ROOT / "train.py"), *options, "--args"]


def table(out: Path) -> str:
    """Markdown: what was done, its cause, what TraceML said, and whether that is right."""
    rows = [
        "| what was done | its cause | TraceML's verdict | right class | cause among its hints |",
        "|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        for file in sorted(out.glob(f"{name.replace(' ', '_')}-[0-9][0-9].json")):
            found = json.loads(file.read_text())
            is_right = found["kind"] in _KINDS.get(case.cause, ("INPUT_BOUND",))
            is_hinted = case.cause in _WORDS and _WORDS[case.cause] in found["action"]
            said = f"{found['status']}: {found['summary']}".replace("|", "\\|").replace("\n", " ")
            rows.append(f"| {name} | {case.cause} | {said} | {_word(is_right)} | {_word(is_hinted)} |")
    return "\n".join(rows)


def _word(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    main()
