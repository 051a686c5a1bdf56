import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from imagenet_opt.cli import arguments
from imagenet_opt.cli.doctor import examine, main, parse, write
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import complete
from imagenet_opt.doctor.apply import Trial, apply, cure_of, write_experiment
from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.diagnosis import STAGES, Finding
from imagenet_opt.doctor.diagnosis_file import read_diagnosis
from imagenet_opt.doctor.verdict import judge
from imagenet_opt.errors import ConfigError, WorkerDied
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.probe.testbed import Testbed
from tests.doctor.diagnoses import change
from tests.doctor.stories import STORIES


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1.5m", 90), ("45", 45)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse(["--budget", text]).budget_seconds == seconds


@pytest.mark.parametrize("text", ["fast", "1s", "-5m", "5h", "2000m"])
def test_another_budget_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--budget"):
        parse([f"--budget={text}"])


def test_where_json_cannot_be_written_is_said_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--json .* cannot be written"):
        parse(["--json", str(tmp_path / "no" / "file.json")])


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--aply.*imagenet-opt doctor --help"):
        parse(["--aply"])


@pytest.mark.slow
def test_a_profile_needs_a_gpu(tmp_path: Path, checked: None) -> None:
    with pytest.raises(ConfigError, match="there is none here"):
        main(["trainer.accelerator=cpu", f"data.cache_dir={tmp_path}", "--record-profile"])


@pytest.mark.slow
def test_an_examination_of_the_demo_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    """All experiments run, everything is in the file, and nothing else is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "_LEAST_SECONDS", 3)
    (tmp_path / "cache").mkdir()
    file = tmp_path / "doctor.json"
    simulated = ["rehearse=a10g", "callbacks.rehearsal.images_per_second=20000", "data.num_workers=1"]
    main([*simulated, "data.cache_dir=cache", "data.num_train=400", "--budget=3s", f"--json={file}"])
    found = read_diagnosis(file)
    assert found.cause in CAUSES
    assert found.measurements.simulated == "a10g"
    assert found.measurements.ceilings.keys() == STAGES.keys() - {"copy_overlapped"}
    assert all(ceiling.images_per_second > 0 for ceiling in found.measurements.ceilings.values())
    assert sum(step.seconds for step in found.waterfall[:-1]) == pytest.approx(found.waterfall[-1].seconds)
    assert found.cause in {finding.rule for finding in found.findings} | {"healthy", "unexplained"}
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert " ".join(found.sentence.split()) in words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "doctor.json"]


@pytest.mark.slow
def test_an_examination_in_which_experiments_fail_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    """A /dev/shm that is full kills the workers, and the GPU runs out of memory: the rest is measured and written."""

    def worker_dies(*_: Any, **__: Any) -> Any:
        raise WorkerDied("a loader worker was killed; /dev/shm is full")

    def no_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "_LEAST_SECONDS", 3)
    monkeypatch.setattr("imagenet_opt.probe.testbed.drain", worker_dies)
    monkeypatch.setattr(Testbed, "_fit", no_memory)
    file = tmp_path / "doctor.json"
    with pytest.raises(SystemExit) as end:
        main(["rehearse=a10g", "data.cache_dir=cache", "data.num_train=400", "--budget=3s", f"--json={file}"])
    assert end.value.code == 1
    found = read_diagnosis(file)
    assert found.measurements.ceilings.keys() == {"storage_cold", "storage_cached", "copy"}
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Not judged: a loader worker was killed; /dev/shm is full (decoding from memory; the loader, files" in said
    assert "CUDA out of memory. Tried to allocate 20.00 GiB (the device alone;" in found.sentence
    assert any(finding.environment and finding.fired is False for finding in found.findings)
    assert found.measurements.facts.profile_estimate is True and "(estimate); source: our estimate of 780" in str(
        found.measurements.facts.profile
    )


def test_only_what_can_be_set_is_applied(capsys: pytest.CaptureFixture[str]) -> None:
    found = judge(STORIES["few_workers"])
    assert cure_of(found).overrides == ("data.num_workers=4",)
    for cause, words in (("healthy", "the verdict is healthy"), ("lazy_mount", "no key of the configuration fixes")):
        assert apply(judge(STORIES[cause]), (), seconds=1.0) is None
        assert capsys.readouterr().out.startswith(f"nothing to apply: {words}")


def test_the_environment_may_have_the_cure_but_the_cause_comes_first() -> None:
    set_it = Finding("channels_last", True, "NCHW", overrides=("callbacks.acceleration.channels_last=true",))
    found = judge(replace(STORIES["lazy_mount"], environment=(replace(set_it, environment=True),)))
    assert cure_of(found).rule == "channels_last"
    found = judge(replace(STORIES["few_workers"], environment=(replace(set_it, environment=True),)))
    assert cure_of(found).rule == "few_workers"


def trial(before: tuple[float, ...], after: tuple[float, ...], predicted: float | None = None) -> Trial:
    return Trial("few_workers", ("data.num_workers=4",), before, after, predicted)


def test_a_trial_says_what_was_predicted_and_what_came() -> None:
    helped = trial((100.0, 110.0, 105.0), (210.0, 200.0, 220.0), predicted=2.5)
    assert helped.helps
    times = "2.00 times (1.63 to 2.46 in 3 rounds)"  # paired t-test of the logarithms
    assert str(helped) == f"105 -> 210 images/s, {times}; predicted 2.50 times: faster"
    assert str(trial((100.0, 110.0, 105.0), (109.0, 200.0, 220.0))).endswith("undecided")
    assert str(trial((100.0, 110.0, 105.0), (80.0, 86.0, 85.0))).endswith("slower")


@pytest.mark.slow
def test_a_cure_is_tried_in_turns_and_kept_if_it_helps(
    own_conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ("callbacks.rehearsal.images_per_second=20000", "callbacks.rehearsal.launch_seconds=0", "logger=[csv]")
    data = ("data.cache_dir=cache", "data.num_train=400", "data.num_workers=0", "data.batch_size=8")
    wrong = ("rehearse=a10g", *quick, *data)
    found = judge(STORIES["few_workers"])
    (cure,) = (finding for finding in found.findings if finding.fired)
    found = change(
        found,
        findings=(replace(cure, overrides=("data.num_workers=1",)),),
        facts=replace(found.measurements.facts, cached_share=1.0),
    )
    tried = apply(found, wrong, seconds=0.3)
    assert len(tried.before) == len(tried.after) == 3 and min(*tried.before, *tried.after) > 0
    assert tried.predicted == found.next_gain
    assert capsys.readouterr().out == f"few_workers, data.num_workers=1: {tried}\n"
    assert len(list((own_conf / "experiment").glob("tuned_*"))) == tried.helps
    write(replace(found, trial=tried.plain()), tmp_path / "doctor.json")
    kept = json.loads((tmp_path / "doctor.json").read_text())["trial"]
    assert kept["overrides"] == ["data.num_workers=1"] and kept["gain"]["low"] <= kept["gain"]["ratio"]
    assert read_diagnosis(tmp_path / "doctor.json").trial == kept


def test_a_file_that_cannot_be_written_after_all_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--json /dev/full cannot be written: No space left"):
        write(judge(STORIES["healthy"]), Path("/dev/full"))


def test_the_cure_becomes_an_experiment(own_conf: Path) -> None:
    found = judge(STORIES["storage_latency"])  # whose cause has no key
    file = write_experiment(found, trial((100.0,) * 3, (300.0,) * 3, predicted=3.0))
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
            self.ceilings = {"decode_one": Ceiling((250.0,) * 7)}

        def evidence(self, command: str) -> Any:
            raise SystemExit(143)

    monkeypatch.setattr("imagenet_opt.doctor.examination.Examination", Stopped)
    monkeypatch.setattr("imagenet_opt.probe.testbed.Testbed", lambda config: None)
    with pytest.raises(SystemExit):
        examine(composed(("data=demo",)), 10.0, "imagenet-opt doctor")
    said = capsys.readouterr().err
    assert "doctor was stopped: no verdict" in said and ": 250 images/s" in said
