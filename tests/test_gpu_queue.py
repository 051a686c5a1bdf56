"""The queue of GPU jobs: what is due, and what becomes of a job. These tests need no GPU."""

import json
import os
import re
import select
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagenet_opt.config.overrides import config_folder
from tests.gpu import fits, report, run

JOBS = yaml.safe_load((run.HERE / "jobs.yaml").read_text())
MACHINE = {"card": "NVIDIA A10G", "capability": "8.6"}


def job(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "seconds": 20, "purpose": "it", "decides": "it", "command": command} | more


@pytest.fixture
def called(tmp_path: Path) -> Any:
    """A call of the queue with these jobs. Returns status, tries and numbers by name."""

    def call(*jobs: dict[str, Any], seconds: float = 100, machine: dict[str, Any] = MACHINE) -> dict[str, Any]:
        file, results = tmp_path / "results.json", tmp_path / "results"
        before = run.known(results) | run.read(file)
        run.run_due(list(jobs), before, file, machine, tmp_path / "work", end=time.perf_counter() + seconds)
        found = run.read(file).values()
        return {one["job"]["name"]: (one["status"], one["tries"], one["numbers"]) for one in found}

    return call


def test_a_job_that_fails_gets_a_second_try_and_the_others_run(called: Any) -> None:
    numbers, summary = 'echo "{\\"rate\\": 2}" >$KEEP/', "mkdir $KEEP/run; "
    jobs = (
        job("broken", "echo no kernel image; false"),
        job("good", f"{numbers}result.json"),
        job("trained", f"{summary}{numbers}run/summary.json"),
    )
    well = {"good": (0, 1, {"rate": 2}), "trained": (0, 1, {"run": {"rate": 2}})}
    assert called(*jobs) == {"broken": (1, 1, {})} | well
    for _ in range(2):
        assert called(*jobs) == {"broken": (1, 2, {})} | well


def test_a_job_that_is_cut_short_keeps_its_numbers_and_leaves_no_process(called: Any, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    ends = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # readable once no process has it open for writing
    command = f'echo "{{\\"half\\": 1}}" >$KEEP/result.json; sleep 600 >{pipe} & wait'
    assert called(job("long", command, seconds=2)) == {"long": (run.CUT, 1, {"half": 1})}
    assert select.select([ends], [], [], 60)[0] and os.read(ends, 1) == b""
    os.close(ends)


def test_what_does_not_fit_or_has_no_data_is_no_try(called: Any, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = job("long", "true", seconds=500), job("photos", "true", needs=["/nowhere/photos"]), job("short", "true")
    assert called(*jobs) == {"short": (0, 1, {})}
    said = capsys.readouterr().out
    assert "long: not run, 500 s do not fit" in said and "photos: not run, /nowhere/photos is absent" in said


def test_a_result_that_is_taken_over_counts_for_its_version_and_kind_of_gpu(called: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    assert called(job("a", "true")) == {"a": (0, 1, {})}
    run.take(tmp_path / "results.json", results)
    (tmp_path / "results.json").unlink()
    assert called(job("a", "true")) == {}
    assert called(job("a", "true", version=2)) == {"a": (0, 1, {})}
    called(job("a", "true"), machine=MACHINE | {"capability": "9.0"})
    run.take(tmp_path / "results.json", results)
    assert len(json.loads((results / "a.json").read_text())) == 3


def test_the_page_has_each_result_with_its_machine_and_lists_what_is_due() -> None:
    machine = MACHINE | {"driver": "580.1", "cpus": 4, "versions": {"torch": "2.11.0"}}
    rows = {
        "now": [{report.RATE: 5000.0}, {report.RATE: 4000.0}],
        "rows|rarely": [{report.RATE: 5100.0}, {"error": "x"}],
    }
    ended = {"status": 0, "seconds": 9.0, "date": "2026-12-01T10:00", "machine": machine, "tail": ["the end"]}
    results = {
        "a": {"job": job("a", "train a"), "numbers": {"rows": rows}} | ended,
        "b": {"job": job("b", "test b"), "numbers": {}} | ended | {"status": run.CUT},
    }
    page = report.page(results, [job("a", "train a"), job("b", "test b")])
    assert "NVIDIA A10G, driver 580.1, 4 CPUs, torch 2.11.0, 2026-12-01, 9 s." in page
    assert "| now | 4,500 | 1.000, 1.000 |" in page and "| rows\\|rarely | 5,100 | 1.020; x |" in page
    assert "status 124" in page and "    the end\n" in page and "    train a\n" in page
    (due,) = (line for line in page.splitlines() if line.startswith("| b |"))
    assert due == "| b | 20 | it | it |"


def words_of_jobs() -> list[tuple[str, str]]:
    """Name and overrides of everything that jobs train."""
    found = [
        (one["name"], f"{one['overrides']} {row}") for one in JOBS if "rows" in one for row in one["rows"].values()
    ]
    for one in JOBS:
        command = one["command"].replace("\\\n", " ")
        for words in re.findall(r"(?<!timm_)(?:train\.py|cli\.main doctor) ([^;&|\n]*)", command):
            options = r"--record-profile|--(?:budget|json) \S+|\S*hydra\.run\.dir=\S+"
            found.append((one["name"], re.sub(options, "", words)))
    return found


@pytest.mark.parametrize(("name", "words"), words_of_jobs())
def test_what_a_job_trains_is_a_configuration(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "experiment=imagenette" in words and not (config_folder() / "experiment/imagenette.yaml").exists():
        pytest.skip("there is no experiment=imagenette yet")
    monkeypatch.setattr(fits, "TINY", "")
    variables = {"WORK": "/w", "DATA": run.DATA.format(work="/w"), "KEEP": "/k", "steps": "20"}
    for variable, value in (variables | {"FEWER_CPUS": "14", "QUARTER_FEWER_CPUS": "12"}).items():
        monkeypatch.setenv(variable, value)
    expanded = fits.words_of(os.path.expandvars(words))
    assert not [word for word in expanded if "$" in word]
    config, _ = fits.configured(expanded)
    assert config.trainer.max_epochs


def test_a_row_can_multiply_a_number_and_lower_the_priority_of_workers() -> None:
    (plain, nothing), (doubled, five) = fits.configured([]), fits.configured(["optimizer.lr*=2", "nice=5"])
    assert doubled.optimizer.lr == 2 * plain.optimizer.lr
    assert (nothing, five) == (0, 5) and "checkpoint" not in doubled.callbacks
