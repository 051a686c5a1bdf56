"""The queue of GPU jobs: a job that fails is tried again, and what jobs train can be composed. No test needs a GPU."""

import re

import pytest
import yaml

from suites.gpu import fits, run

JOBS = yaml.safe_load((run.HERE / "jobs.yaml").read_text())


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
