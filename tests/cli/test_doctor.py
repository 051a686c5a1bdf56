import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from imagenet_opt.cli import arguments
from imagenet_opt.cli.doctor import examine, main, parse, write
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import complete
from imagenet_opt.doctor.apply import Trial, apply, remedy_of, write_experiment
from imagenet_opt.doctor.diagnosis import VERDICTS, judge
from imagenet_opt.doctor.diagnosis_file import read_diagnosis
from imagenet_opt.doctor.measurements import STAGES, UrlCache
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.errors import ConfigError, WorkerDied
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.probe.testbed import Testbed
from tests.doctor.diagnoses import changed, make_evidence
from tests.doctor.stories import STORIES

SIMULATED = ("rehearse=a10g", "data.cache_dir=cache", "data.num_train=400", "data.num_val=20")


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1.5m", 90), ("45", 45)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse(["--budget", text]).budget_seconds == seconds


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        *((f"--budget={text}", "--budget") for text in ("fast", "1s", "-5m", "25h", "2000m")),
        ("--json=/absent/folder/file.json", r"--json .* cannot be written"),
        ("--aply", r"--aply.*imagenet-opt doctor --help"),
    ],
)
def test_a_wrong_argument_is_refused_before_measuring(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse([argument])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """doctor.json in the working folder; budgets may be short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "_LEAST_SECONDS", 3)
    return tmp_path / "doctor.json"


def printed_text(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_profile_needs_a_gpu(tmp_path: Path) -> None:
    few = ("data.num_train=64", "data.num_val=10", "data.batch_size=4", f"data.cache_dir={tmp_path}")
    with pytest.raises(ConfigError, match="there is none here"):
        main(["trainer.accelerator=cpu", *few, "--record-profile"])


@pytest.mark.slow
def test_an_examination_of_the_demo_data(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All experiments run, the file has all results, and nothing else is left."""
    (file.parent / "cache").mkdir()
    quick = ["callbacks.rehearsal.images_per_second=20000", "data.num_workers=1", "--budget=3s"]
    main([*SIMULATED, *quick, f"--json={file}"])
    diagnosis = read_diagnosis(file)
    assert diagnosis.cause in VERDICTS
    assert diagnosis.measurements.simulated == "a10g"
    ceilings = diagnosis.measurements.ceilings
    assert ceilings.keys() == STAGES.keys() - {"copy_overlapped"}
    assert all(ceiling.images_per_second > 0 for ceiling in ceilings.values())
    *parts, run = diagnosis.waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(run.seconds)
    assert diagnosis.cause in {finding.rule for finding in diagnosis.findings} | {"healthy", "unexplained"}
    assert " ".join(diagnosis.sentence.split()) in printed_text(capsys)
    assert sorted(path.name for path in file.parent.iterdir()) == ["cache", "doctor.json"]


@pytest.mark.slow
def test_the_results_are_kept_if_experiments_fail(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full /dev/shm kills the workers, and the GPU runs out of memory: the rest is measured and written."""

    def raising(error: Exception) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise error

        return fail

    died, no_memory = "a loader worker was killed; /dev/shm is full", "CUDA out of memory. Tried to allocate 20.00 GiB"
    monkeypatch.setattr("imagenet_opt.probe.testbed.drain", raising(WorkerDied(died)))
    monkeypatch.setattr(Testbed, "_fit", raising(torch.OutOfMemoryError(no_memory)))
    with pytest.raises(SystemExit) as end:
        main([*SIMULATED, "logger=[csv]", "--budget=3s", f"--json={file}"])
    assert end.value.code == 1
    diagnosis = read_diagnosis(file)
    assert diagnosis.measurements.ceilings.keys() == {"storage_cold", "storage_cached", "copy"}
    assert f"Not judged: {died} (decoding from memory; the loader, files" in printed_text(capsys)
    assert f"{no_memory} (the device alone;" in diagnosis.sentence
    assert any(finding.environment and finding.fired is False for finding in diagnosis.findings)
    setup = diagnosis.measurements.setup
    assert setup.profile_estimate and "(estimate); source: our estimate of 780" in setup.profile


@pytest.mark.parametrize(
    ("cause", "reason"),
    [("healthy", "the verdict is healthy"), ("lazy_mount", "no key of the configuration fixes lazy_mount")],
)
def test_without_overrides_nothing_is_applied(cause: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert apply(judge(STORIES[cause]), (), seconds=1.0) is None
    assert capsys.readouterr().out.startswith(f"nothing to apply: {reason}")


@pytest.mark.parametrize(("cause", "rule"), [("lazy_mount", "channels_last"), ("few_workers", "few_workers")])
def test_the_overrides_of_a_cause_come_before_those_of_the_environment(cause: str, rule: str) -> None:
    remedy = remedy_of(judge(changed(STORIES[cause], has_gpu=True)))
    overrides = ("callbacks.acceleration.channels_last=true",) if rule == "channels_last" else ("data.num_workers=4",)
    assert (remedy.rule, remedy.overrides) == (rule, overrides)


def trial(before: tuple[float, ...], after: tuple[float, ...], predicted: float | None = None) -> Trial:
    remedy = Finding("few_workers", True, "", overrides=("data.num_workers=4",), gain=predicted)
    return Trial(remedy, Rounds({"without": list(before), "with": list(after)}, seconds=60.0))


def test_a_trial_prints_the_predicted_and_the_measured_gain() -> None:
    helped = trial((100.0, 110.0, 105.0), (210.0, 200.0, 220.0), predicted=2.5)
    assert helped.helps
    assert str(helped) == "105 -> 210 images/s, 2.00 x (1.63 to 2.46) faster; predicted 2.50 x", "a paired t-test"
    undecided = trial((100.0, 110.0, 105.0), (109.0, 200.0, 220.0))
    assert str(undecided).endswith("undecided, about 40 s more") and not undecided.helps
    assert str(trial((100.0, 110.0, 105.0), (80.0, 86.0, 85.0))).endswith("slower")


@pytest.mark.slow
def test_overrides_are_tried_alternately_and_kept_if_they_help(
    own_conf: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("callbacks.rehearsal.images_per_second=20000", "callbacks.rehearsal.launch_seconds=0", "logger=[csv]")
    slow = (*SIMULATED, *quick, "data.num_workers=0", "data.batch_size=8")
    diagnosis = judge(STORIES["few_workers"])
    remedy = replace(remedy_of(diagnosis), overrides=("data.num_workers=1",))
    diagnosis = changed(diagnosis, findings=(remedy,), cached_share=1.0)
    result = apply(diagnosis, slow, seconds=0.3)
    assert [len(rates) for rates in result.rounds.results.values()] == [3, 3] and result.gain.before > 0
    assert capsys.readouterr().out == f"few_workers, data.num_workers=1: {result}\n"
    assert len(list((own_conf / "experiment").glob("tuned_*"))) == result.helps
    write(replace(diagnosis, trial=result.plain()), file)
    kept = json.loads(file.read_text())["trial"]
    assert kept["overrides"] == ["data.num_workers=1"] and kept["predicted"] == diagnosis.next_gain
    assert len(kept["before"]) == len(kept["after"]) == 3 and kept["gain"]["low"] <= kept["gain"]["ratio"]
    assert read_diagnosis(file).trial == kept


def test_a_full_disk_is_reported_in_one_line() -> None:
    with pytest.raises(ConfigError, match="--json /dev/full cannot be written: No space left"):
        write(judge(STORIES["healthy"]), Path("/dev/full"))


def test_the_overrides_become_an_experiment(own_conf: Path) -> None:
    result = trial((100.0,) * 3, (300.0,) * 3, predicted=3.0)
    file = write_experiment(judge(STORIES["storage_latency"]), result)  # the cause itself has no override
    assert "few_workers; 100 -> 300 images/s" in file.read_text()
    assert yaml.safe_load(file.read_text()) == {"data": {"num_workers": 4}}
    with initialize_config_dir(str(own_conf), version_base="1.3"):
        config = compose("train", complete([f"+experiment={file.stem}", "data.root=somewhere"]))
    assert config.data.num_workers == 4


def test_a_doctor_that_is_stopped_shows_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.ceilings = {"loader_warm": Ceiling((250.0,) * 7), "gpu": Ceiling((90.0,) * 7)}
            self.setup = changed(make_evidence(has_gpu=False).setup, cache=UrlCache(1.0, ""))
            self.testbed = SimpleNamespace(simulated=None)

        def evidence(self, command: str) -> Any:
            raise SystemExit(143)

    monkeypatch.setattr("imagenet_opt.doctor.examination.Examination", Stopped)
    monkeypatch.setattr("imagenet_opt.probe.testbed.Testbed", lambda config: None)
    with pytest.raises(SystemExit):
        examine(composed(("data=demo",)), 10.0, "imagenet-opt doctor")
    text = capsys.readouterr().err
    assert "doctor was stopped: no verdict" in text
    assert "loader, samples in the local cache: 250 images/s" in text and "CPU, batch resident: 90 images/s" in text
