"""A step that train.py would refuse is known before anything is measured."""

from pathlib import Path

import pytest

from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError
from imagenet_opt.study.request import read_study
from imagenet_opt.study.steps.check import check_rows
from imagenet_opt.study.steps.plan import Plan, StepsFile
from tests.study.turns import steps_outcome


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("callbacks.acceleration.compile_mode=maxi", "compile_mode='maxi' must be one of default"),
        ("callbacks.acceleration.compile=perhaps", r"callbacks\.acceleration\.compile=perhaps must be"),
        ("optimizer.fused=7", r"optimizer\.fused=7 must be"),
        ("data.copies=sideways", r"data\.copies=sideways must be one of"),
        ("trainer.precision=bf17", r"trainer\.precision=bf17 must be"),
        ("model.label_smoothing=much", r"model\.label_smoothing=much must be"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_the_name_of_its_row(
    word: str, message: str, tmp_path: Path, checked: None
) -> None:
    steps = [{"name": "good", "overrides": ["optimizer.fused=false"]}, {"name": "bad", "overrides": [word]}]
    plan = steps_outcome(tmp_path, steps).plan
    with pytest.raises(ConfigError, match=f"^bad: .*{message}"):
        check_rows(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ladder", "leave_one_out", "checklist"])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_the_studies_that_come_along_pass(name: str, has_gpu: bool, checked: None) -> None:
    _, found = read_study(name, config_folder() / "study")
    file = StepsFile.model_validate(found.model_extra)
    plan = Plan(file, ("data=demo", "+experiment=aggressive"), batch_size=64, has_gpu=has_gpu, mixed="bf16-mixed")
    assert len(plan.rows) > 5
    check_rows(plan)


def test_a_step_must_change_something(tmp_path: Path, checked: None) -> None:
    with pytest.raises(ConfigError, match="idle: the step changes nothing; give it overrides or batch_factor"):
        check_rows(steps_outcome(tmp_path, [{"name": "idle"}]).plan)
