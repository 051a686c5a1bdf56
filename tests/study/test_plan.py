"""The rows of a study, and mistakes in its file."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.study.file import StepsFile, read_study
from imagenet_opt.study.plan import StudyPlan, StudyRow
from imagenet_opt.study.steps import check_rows
from tests.study.studies import steps_study

STEPS = [
    {"name": "a", "overrides": ["x=1"]},
    {"name": "on a GPU", "overrides": ["y=1"], "needs": "gpu"},
    {"name": "b", "overrides": ["z=1"], "other_loss": "another batch", "batch_factor": 1.5},
    {"name": "c", "overrides": ["w=1"]},
]
REPLACING = [
    {"name": "a", "overrides": ["x=1"]},
    {"name": "b", "overrides": ["z=1"]},
    {"name": "b2", "overrides": ["z=2"], "instead_of": "b"},
    {"name": "b3", "overrides": ["z=3"], "instead_of": "b"},
    {"name": "c", "overrides": ["w=1"]},
]


Steps = list[dict[str, Any]]


def plan(order: str, *, steps: Steps = STEPS, has_gpu: bool = False, mixed: str = "bf16-mixed") -> StudyPlan:
    file = StepsFile(title="mine", kind="steps", order=order, start=["s=1"], steps=steps)  # type: ignore[arg-type]
    return StudyPlan(file, ("data.root=d",), batch_size=64, has_gpu=has_gpu, mixed=mixed)


def row(made: StudyPlan, name: str, failed: Collection[str] = ()) -> StudyRow:
    return next(row for row in made.rows(failed) if row.name == name)


def shipped(name: str, *words: str, has_gpu: bool = True) -> StudyPlan:
    file = read_study(name)
    assert isinstance(file, StepsFile)
    return StudyPlan(file, words, batch_size=50, has_gpu=has_gpu, mixed="bf16-mixed")


X, Y, Z, W = ("x=1",), ("y=1",), ("z=1", "data.batch_size=96"), ("w=1",)


@pytest.mark.parametrize(
    ("order", "steps", "failed", "name", "words", "pair"),
    [
        ("cumulative", STEPS, (), "start", (), None),
        ("cumulative", STEPS, (), "c", (*X, *Y, *Z, *W), ("c", "b")),
        ("cumulative", STEPS, {"b"}, "c", (*X, *Y, *W), ("c", "on a GPU")),
        ("cumulative", REPLACING, (), "b3", (*X, "z=3"), ("b3", "a")),
        ("cumulative", REPLACING, (), "c", (*X, "z=1", *W), ("c", "b")),
        ("cumulative", REPLACING, {"b"}, "b2", (*X, "z=2"), ("b2", "a")),
        ("cumulative", REPLACING, {"b"}, "c", (*X, *W), ("c", "a")),
        ("alone", STEPS, {"a", "b"}, "c", W, ("c", "start")),
        ("alone", REPLACING, (), "b2", ("z=2",), ("b2", "start")),
        ("leave_one_out", STEPS, (), "all of them", (*X, *Y, *Z, *W), None),
        ("leave_one_out", STEPS, {"b"}, "a", (*Y, *Z, *W), ("all of them", "a")),
    ],
)
def test_the_overrides_of_a_row_and_its_comparison(
    order: str, steps: Steps, failed: Collection[str], name: str, words: tuple[str, ...], pair: tuple[str, str] | None
) -> None:
    """In a ladder, a row builds on no step that failed in the first round."""
    planned = row(plan(order, steps=steps, has_gpu=True), name, failed)
    assert (planned.overrides, planned.pair) == (("data.root=d", "s=1", *words), pair)


@pytest.mark.parametrize(
    ("order", "steps", "message"),
    [
        ("alone", [{"name": "a", "instead_of": "b"}, {"name": "b"}], "step 'a': instead_of=b must name an earlier"),
        ("leave_one_out", REPLACING, "step 'b2': instead_of=b must name nothing with order: leave_one_out"),
        ("alone", [{"name": "a"}, {"name": "a"}], "several are named a"),
        ("alone", [{"name": "a", "overrides": ["+hydra.run.dir=/tmp"]}], "set it on the command line"),
    ],
)
def test_a_file_may_not_contradict_itself(order: str, steps: Steps, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(order, steps=steps)


def test_a_bad_step_is_reported_with_its_name(tmp_path: Path) -> None:
    for words, message in ((["optimizer.fusd=true"], r".*optimizer\.fusd"), ([], "it changes nothing")):
        rows = steps_study(tmp_path, [{"name": "bad", "overrides": words}]).rows
        with pytest.raises(ConfigError, match=f"^step 'bad': {message}"):
            check_rows(rows)


@pytest.mark.parametrize("name", ["ladder", "leave_one_out", "checklist"])
def test_the_overrides_of_the_shipped_studies_are_valid(name: str) -> None:
    made = shipped(name, "data=demo", "+experiment=aggressive")
    alone = "CUDA graph" if name == "checklist" else None  # contradicts gradient checkpointing
    steps = [step for step in made.steps if not step.instead_of and step.name != alone]
    words = [word for step in steps for word in made.words(step)]
    check_rows([StudyRow("all steps", None, (), (*made.rows()[0].overrides, *words))])


def test_a_file_that_is_no_yaml_is_reported(tmp_path: Path) -> None:
    (file := tmp_path / "mine.yaml").write_text("title: [unclosed\n")
    with pytest.raises(ConfigError, match=f"^study={file}: "):
        read_study(str(file))
