import pytest
from hydra import compose, initialize_config_dir

from callbacks.acceleration import Acceleration
from imagenet_opt.cli.overrides import complete, config_folder
from imagenet_opt.cli.study_plan import Plan, Row, StepsFile
from imagenet_opt.cli.study_request import read_study
from imagenet_opt.errors import ConfigError

STEPS = [
    {"name": "a", "overrides": ["x=1"]},
    {"name": "on a GPU", "overrides": ["y=1"], "needs": "gpu"},
    {"name": "b", "overrides": ["z=1"], "other_loss": "another batch", "batch_factor": 1.5},
    {"name": "c", "overrides": ["w=1"]},
]


def plan(order: str, *, has_gpu: bool = False) -> Plan:
    file = StepsFile.model_validate({"order": order, "start": ["s=1"], "steps": STEPS})
    return Plan(file, ("data.root=d",), batch_size=64, has_gpu=has_gpu)


def row(made: Plan, name: str) -> Row:
    return next(row for row in made.rows if row.name == name)


def test_each_step_of_a_ladder_stands_on_those_before_it() -> None:
    ladder = plan("cumulative")
    assert [row.name for row in ladder.rows] == ["start", "a", "b", "c"]
    assert ladder.absent == {"on a GPU": "there is no GPU here"}
    assert ladder.overrides_of(row(ladder, "start")) == ("data.root=d", "s=1")
    assert ladder.overrides_of(row(ladder, "c")) == ("data.root=d", "s=1", "x=1", "z=1", "data.batch_size=96", "w=1")
    assert ladder.pair(row(ladder, "c")) == ("c", "b")
    assert (ladder.other_loss(row(ladder, "a")), ladder.other_loss(row(ladder, "c"))) == (None, "another batch")


def test_a_step_that_fails_is_no_ground_for_those_after_it() -> None:
    ladder = plan("cumulative", has_gpu=True)
    ladder.drop(row(ladder, "b"), first_round=True)
    assert ladder.overrides_of(row(ladder, "c")) == ("data.root=d", "s=1", "x=1", "y=1", "w=1")
    assert ladder.pair(row(ladder, "c")) == ("c", "on a GPU")
    assert ladder.other_loss(row(ladder, "c")) is None


def test_what_has_been_measured_stays_what_it_was_when_a_step_fails_later() -> None:
    ladder = plan("cumulative")
    before = ladder.overrides_of(row(ladder, "c"))
    ladder.drop(row(ladder, "b"), first_round=False)
    assert ladder.overrides_of(row(ladder, "c")) == before
    assert ladder.pair(row(ladder, "c")) == ("c", "a")


@pytest.mark.parametrize("order", ["alone", "leave_one_out"])
def test_where_steps_do_not_build_on_each_other_a_failure_changes_no_other_row(order: str) -> None:
    made = plan(order)
    before = [made.overrides_of(one) for one in made.rows]
    made.drop(row(made, "b"), first_round=True)
    assert [made.overrides_of(one) for one in made.rows] == before


@pytest.mark.parametrize("word", ["allow_targets=[os]", "+hydra.run.dir=/tmp", "hydra/launcher=slurm"])
def test_a_strangers_file_says_nothing_that_only_the_user_may(word: str) -> None:
    file = StepsFile.model_validate({"order": "alone", "steps": [{"name": "a", "overrides": [word]}]})
    with pytest.raises(ConfigError, match="say it on the command line"):
        Plan(file, (), batch_size=1, has_gpu=False)


def test_alone_every_step_stands_on_the_start() -> None:
    alone = plan("alone")
    assert alone.overrides_of(row(alone, "c")) == ("data.root=d", "s=1", "w=1")
    assert alone.pair(row(alone, "c")) == ("c", "start")
    assert alone.other_loss(row(alone, "c")) is None


def test_left_out_a_step_is_worth_what_all_have_over_the_rest() -> None:
    rest = plan("leave_one_out")
    assert rest.overrides_of(rest.rows[0]) == ("data.root=d", "s=1", "x=1", "z=1", "data.batch_size=96", "w=1")
    assert rest.overrides_of(row(rest, "a")) == ("data.root=d", "s=1", "z=1", "data.batch_size=96", "w=1")
    assert rest.pair(row(rest, "a")) == ("all of them", "a")


def test_names_must_tell_the_steps_apart() -> None:
    file = StepsFile.model_validate({"order": "alone", "steps": [{"name": "a"}, {"name": "a"}]})
    with pytest.raises(ConfigError, match="each with a name of its own, found a, a"):
        Plan(file, (), batch_size=1, has_gpu=False)


@pytest.mark.parametrize("name", ["ladder", "leave_one_out", "checklist"])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_every_row_of_the_studies_that_come_along_is_a_configuration(name: str, has_gpu: bool) -> None:
    _, found = read_study(name, config_folder() / "study")
    given = ("data.root=/data", "+experiment=aggressive")
    made = Plan(StepsFile.model_validate(found.model_extra), given, batch_size=50, has_gpu=has_gpu)
    assert len(made.rows) > 5
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        for one in made.rows:
            config = compose("train", complete(list(made.overrides_of(one))))
            assert config.callbacks.mixing.mode in ("on", "off")
            options = {key: value for key, value in config.callbacks.acceleration.items() if key != "_target_"}
            Acceleration(**options)  # refuses what does not go together
            assert one.name != "compile" or options["compile_mode"] == "default"
