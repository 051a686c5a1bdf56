import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from imagenet_opt.cli import arguments
from imagenet_opt.cli.doctor import main
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.doctor.apply import kept
from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.diagnosis_file import as_json, read_diagnosis
from imagenet_opt.doctor.measurements import STAGES
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.errors import ConfigError
from tests.doctor.stories import STORIES

SIMULATED = ("rehearse=a10g", "data.cache_dir=cache", "data.num_train=400", "data.num_val=20", "logger=[csv]")
QUICK = "callbacks.rehearsal.images_per_second=20000"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """doctor.json in the working folder; budgets may be short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "_LEAST_SECONDS", 3)
    return tmp_path / "doctor.json"


def test_a_profile_needs_a_gpu(tmp_path: Path) -> None:
    few = ("data.num_train=64", "data.num_val=10", "data.batch_size=4", f"data.cache_dir={tmp_path}")
    with pytest.raises(ConfigError, match=r"--record-profile .*GPU"):
        main(["trainer.accelerator=cpu", *few, "--record-profile"])


@pytest.mark.slow
def test_an_examination_of_the_demo_data(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All experiments run, the file has all results, and nothing else is left."""
    (file.parent / "cache").mkdir()
    main([*SIMULATED, QUICK, "data.num_workers=1", "--budget=3s", f"--json={file}"])
    diagnosis = read_diagnosis(file)
    assert diagnosis.cause in STORIES
    assert diagnosis.measurements.simulated == "a10g"
    ceilings = diagnosis.measurements.ceilings
    assert ceilings.keys() == STAGES.keys() - {"copy_overlapped"}
    assert all(ceiling.images_per_second > 0 for ceiling in ceilings.values())
    *parts, run = diagnosis.waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(run.seconds)
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert " ".join(diagnosis.sentence.split()) in printed
    assert sorted(path.name for path in file.parent.iterdir()) == ["cache", "doctor.json"]


@pytest.mark.parametrize(
    ("after", "result"),
    [
        ((210.0, 200.0, 220.0), "2.00 x (1.63 to 2.46) faster"),  # paired t-test
        ((109.0, 200.0, 220.0), "undecided, about 40 s more"),
    ],
)
def test_only_overrides_that_help_become_an_experiment(
    after: tuple[float, ...], result: str, own_conf: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = Finding("few_workers", True, "", overrides=("data.num_workers=4",), gain=2.5)
    rounds = Rounds({"without": [100.0, 110.0, 105.0], "with": list(after)}, seconds=60.0)
    diagnosis = judge(STORIES["few_workers"])
    trial = kept(diagnosis, remedy, rounds)
    assert result in capsys.readouterr().out
    file.write_text(as_json(replace(diagnosis, trial=trial)))
    assert read_diagnosis(file).trial == json.loads(json.dumps(trial))
    written = list((own_conf / "experiment").glob("tuned_*"))
    assert len(written) == trial["helps"] == ("faster" in result)
    for experiment in written:
        assert "few_workers" in experiment.read_text() and result in experiment.read_text()
        assert yaml.safe_load(experiment.read_text()) == {"data": {"num_workers": 4}}
