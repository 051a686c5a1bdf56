"""The queue of GPU jobs: a job that fails is tried again, and what jobs train can be composed. No test needs a GPU."""

import re
import time
from pathlib import Path

import pytest
import yaml

from suites.gpu import fits, run

JOBS = yaml.safe_load((run.HERE / "jobs.yaml").read_text())


def test_a_job_that_fails_or_takes_too_long_gets_a_second_try_and_the_others_run(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    jobs = [
        {"name": name, "seconds": seconds, "purpose": "", "decides": "", "command": command}
        for name, seconds, command in (
            ("broken", 200, "false"),
            ("good", 200, 'echo "{\\"rate\\": 2}" >$KEEP/result.json'),
            ("long", 1, "sleep 600"),
            ("cut", 1, 'echo "{\\"rate\\": 3}" >$KEEP/result.json; sleep 600'),
            ("no time", 500, "true"),
        )
    ]
    for _ in range(3):
        end = time.perf_counter() + 400
        run.run_due(jobs, run.read(file), file, {"card": "a card"}, tmp_path / "work", end=end)
    found = {one["job"]["name"]: (one["status"], one["tries"], one["numbers"]) for one in run.read(file).values()}
    assert found == {
        "broken": (1, 2, {}),
        "good": (0, 1, {"rate": 2}),
        "long": (run.CUT, 2, {}),
        "cut": (run.CUT, 1, {"rate": 3}),
    }


@pytest.mark.slow
def test_what_jobs_train_are_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of each job; a GPU shows the others."""
    monkeypatch.setattr(fits, "TINY", "")
    variables = {"WORK": "/w", "DATA": run.DATA.format(work="/w"), "KEEP": "/k", "steps": "20"}
    for variable, value in (variables | {"QUARTER_FEWER_CPUS": "12"}).items():
        monkeypatch.setenv(variable, value)
    trained = [f"{job['overrides']} {next(iter(job['rows'].values()))}" for job in JOBS if "rows" in job]
    for job in JOBS:
        commands = re.findall(r"(?<!timm_)train\.py ([^;&|\n]*)", job["command"].replace("\\\n", " "))
        trained += [re.sub(r"\S*hydra\.run\.dir=\S+", "", words) for words in commands]
    for words in set(trained):
        assert fits.configured(fits.words_of(words))[0].trainer.max_epochs
