from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from imagenet_opt.cli.doctor import HELP, main, parse
from imagenet_opt.cli.doctor_apply import Trial, cure_of, write_experiment
from imagenet_opt.cli.overrides import complete, config_folder
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.diagnosis import CAUSES, STAGES, read_diagnosis
from imagenet_opt.measure.verdict import judge
from tests.measure.test_verdict import STORIES


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    said = capsys.readouterr().out
    assert said.strip() == HELP.strip()
    for flag in ("--budget", "--json", "--apply", "--record-profile"):
        assert flag in said


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


def test_a_profile_needs_a_gpu(tmp_path: Path, checked: None) -> None:
    with pytest.raises(ConfigError, match="there is none here"):
        main(["trainer.accelerator=cpu", f"data.cache_dir={tmp_path}", "--record-profile"])


@pytest.mark.slow
def test_an_examination_of_the_demo_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    """All experiments run, everything is in the file, and nothing else is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    file = tmp_path / "doctor.json"
    simulated = ["rehearse=a10g", "callbacks.rehearsal.images_per_second=20000", "data.num_workers=1"]
    main([*simulated, "data.cache_dir=cache", "data.num_train=400", "--budget=10s", f"--json={file}"])
    found = read_diagnosis(file)
    assert found.cause in CAUSES
    assert found.simulated == "a10g"
    assert found.ceilings.keys() == STAGES.keys() - {"copy_overlapped"}
    assert all(ceiling.images_per_second > 0 for ceiling in found.ceilings.values())
    assert sum(step.seconds for step in found.waterfall[:-1]) == pytest.approx(found.waterfall[-1].seconds)
    assert found.cause in {finding.rule for finding in found.findings} | {"healthy", "unexplained"}
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert " ".join(found.sentence.split()) in words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "doctor.json"]


def test_only_what_can_be_set_is_applied() -> None:
    assert cure_of(judge(STORIES["few_workers"])).overrides == ("data.num_workers=4",)
    with pytest.raises(ConfigError, match="healthy, there is nothing to apply"):
        cure_of(judge(STORIES["healthy"]))
    with pytest.raises(ConfigError, match="no key of the configuration mends this; imagenet-opt hydrate"):
        cure_of(judge(STORIES["lazy_mount"]))


def test_a_trial_says_what_was_predicted_and_what_came() -> None:
    helped = Trial(before=(100.0, 110.0, 105.0), after=(210.0, 200.0, 220.0), predicted=2.5)
    assert helped.helps
    assert str(helped) == "105 -> 210 images/s, 2.00 times; predicted 2.50 times: faster"
    assert "no difference" in str(Trial(before=(100.0, 110.0, 105.0), after=(109.0, 200.0, 220.0), predicted=None))


def test_the_cure_becomes_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    for entry in config_folder().iterdir():
        (conf / entry.name).symlink_to(entry) if entry.name != "experiment" else (conf / entry.name).mkdir()
    monkeypatch.setattr("imagenet_opt.cli.overrides.config_folder", lambda: conf)
    found = judge(STORIES["few_workers"])
    trial = Trial((100.0,) * 3, (300.0,) * 3, predicted=3.0)
    file = write_experiment(found, cure_of(found), trial)
    assert "few_workers; 100 -> 300 images/s" in file.read_text()
    assert yaml.safe_load(file.read_text()) == {"data": {"num_workers": 4}}
    with initialize_config_dir(str(conf), version_base="1.3"):
        config = compose("train", complete([f"+experiment={file.stem}", "data.root=somewhere"]))
    assert config.data.num_workers == 4
