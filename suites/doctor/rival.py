"""Another tool, TraceML, on the doctor's cases: `python -m suites.doctor.rival SAMPLE OUT`.

Each case is a run of train.py under `traceml run` (https://github.com/traceopt-ai/traceml), with TraceML's callback for
Lightning as suites/doctor/traced.py sets it up, or with --zero-code as TraceML adds it. Each run writes one JSON file
to OUT; existing files are kept. Needs `pip install traceml-ai`, which the project does not depend on.

On a CPU, TraceML times with the host's clock. The host waits for the simulated device inside the network's forward,
which TraceML counts as compute. When a metric or callback reads a value, the host waits in what TraceML calls residual.
"""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from suites.doctor.cases import CASES, arranged
from suites.doctor.suite import case_parser, missing
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
"""Cause -> TraceML's correct verdicts; INPUT_BOUND for the other causes, which are in the data path."""
_WORDS = {
    "storage_latency": "storage",
    "storage_bandwidth": "storage",
    "lazy_mount": "storage",
    "few_workers": "workers",
    "small_prefetch": "prefetch",
    "slow_logging": "logging",
    "checkpoint_stall": "checkpointing",
}
"""Cause -> TraceML 0.5's word for it in advice; TraceML has no word for the other causes."""


def main() -> None:
    parser = case_parser(__doc__, rounds=1)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--zero-code", action="store_true", help="let TraceML choose what is timed")
    options = parser.parse_args()
    for name, file in missing(options):
        verdict = judged(name, options.sample.resolve(), file, options.steps, zero_code=options.zero_code)
        file.write_text(json.dumps(verdict, indent=1))
        print(f"{file.stem}: {verdict['status']}", flush=True)
    print(table(options.out))


def judged(name: str, sample: Path, file: Path, num_steps: int, *, zero_code: bool) -> dict[str, Any]:
    """TraceML's verdict on a run of the case."""
    with tempfile.TemporaryDirectory() as scratch, file.with_suffix(".log").open("w") as log:
        try:
            with arranged(CASES[name], sample, Path(scratch)) as overrides:
                command = ["timeout", str(_LIMIT_SECONDS), sys.executable, "-m", "traceml_ai.launcher.cli"]
                command += ["run", str(_ROOT / "train.py"), "--logs-dir", scratch, "--run-name", "run"]
                command += ["--no-save-training-output", "--args", *overrides, *([] if zero_code else _CALLBACK)]
                command += [f"data.cache_dir={scratch}/cache", f"hydra.run.dir={scratch}/out"]
                command += ["trainer.limit_val_batches=0", f"trainer.max_steps={num_steps}"]
                subprocess.run(command, cwd=_ROOT, stdout=log, stderr=log, check=True)
        except (NotTried, subprocess.CalledProcessError) as reason:
            return {"case": name, "kind": "", "status": f"no verdict: {reason}", "summary": "", "action": ""}
        summary = json.loads((Path(scratch) / "run" / "final_summary.json").read_text())
    verdict = summary["primary_diagnosis"]
    sections = {part: summary[part]["diagnosis"] for part in ("system", "process", "step_time", "step_memory")}
    return {"case": name, "traceml": version("traceml-ai"), **verdict, "sections": sections}


def table(out: Path) -> str:
    """Markdown: case, cause, TraceML's verdict, and whether the verdict is right."""
    headings = ("what was done", "its cause", "TraceML's verdict", "right class", "cause among its hints")
    rows = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, case in CASES.items():
        for file in sorted(out.glob(f"{name.replace(' ', '_')}-[0-9][0-9].json")):
            verdict = json.loads(file.read_text())
            is_right = verdict["kind"] in _KINDS.get(case.cause, ("INPUT_BOUND",))
            is_hinted = case.cause in _WORDS and _WORDS[case.cause] in verdict["action"]
            text = f"{verdict['status']}: {verdict['summary']}".replace("|", "\\|").replace("\n", " ")
            answers = ("yes" if answer else "no" for answer in (is_right, is_hinted))
            rows.append(f"| {name} | {case.cause} | {text} | {' | '.join(answers)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
