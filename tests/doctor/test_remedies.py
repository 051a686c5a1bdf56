"""What is prescribed can be typed, and changes something."""

import shlex
from dataclasses import replace
from typing import Any

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.remedies import changing, data_place, list_processes, saves, without_waiting
from imagenet_opt.doctor.verdict import judge
from tests.doctor.diagnoses import change
from tests.doctor.stories import STORIES, seen


def configured(**config: Any) -> Evidence:
    return change(seen(), config=config)


def finding_of(rule: str, run: Evidence) -> Finding:
    return next(finding for finding in judge(run).findings if finding.rule == rule)


def test_what_is_so_already_is_not_prescribed() -> None:
    run = configured(data={"num_workers": 4, "shuffle": "block"}, checkpoint={"every_n_steps": None}, on=True)
    same = ("data.num_workers=4", "data.shuffle=block", "checkpoint.every_n_steps=null", "on=true")
    assert changing(run, *same) == ()
    others = ("data.num_workers=3", "data.shuffle=global", "checkpoint.every_n_steps=8", "checkpoint.keep=2")
    assert changing(run, *others) == others


def test_what_auto_has_come_to_is_not_prescribed() -> None:
    assert changing(configured(data={"num_workers": "auto"}), "data.num_workers=4") == ()


@pytest.mark.parametrize(
    ("steps", "minutes", "overrides"),
    [
        (None, 15, ()),
        (100, 15, ("checkpoint.every_n_steps=null",)),
        (None, 1, ("checkpoint.every_minutes=15",)),
        (None, 60, ()),
        (10, None, ("checkpoint.every_n_steps=null", "checkpoint.every_minutes=15")),
    ],
)
def test_checkpoints_are_not_made_more_often(steps: Any, minutes: Any, overrides: tuple[str, ...]) -> None:
    assert saves(configured(checkpoint={"every_n_steps": steps, "every_minutes": minutes})) == overrides


def test_another_callback_that_saves_is_named() -> None:
    callbacks = {
        "checkpoint": {"_target_": "callbacks.checkpoint.Checkpoint"},
        "mine": {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint"},
        "off": None,
    }
    config = {"checkpoint": {"every_n_steps": None, "every_minutes": 15}, "callbacks": callbacks}
    found = finding_of("checkpoint_stall", change(STORIES["checkpoint_stall"], config=config))
    assert found.fired and not found.overrides
    assert "callbacks.mine (ModelCheckpoint)" in found.remedy and "callbacks.checkpoint" not in found.remedy


def test_the_folder_is_the_runs_own_and_quoted_for_the_shell() -> None:
    run = configured(data={"root": "/my data/$x", "train_folder": ".", "val_folder": "val"})
    assert shlex.split(data_place(run).words) == ["data.root=/my data/$x", "data.train_folder=."]
    assert shlex.split(data_place(run).pack())[2] == "data.root=/my data/$x"


@pytest.mark.parametrize("config", [{}, {"data": {"root": None}}, {"data": {"root": "${oc.env:DATA}"}}])
def test_without_a_folder_there_is_a_place_for_it(config: dict[str, Any]) -> None:
    assert data_place(configured(**config)).words == "data.root=YOUR_FOLDER"


def test_shards_are_copied_and_not_packed() -> None:
    packed = change(configured(data={"root": "/fsx/packed"}), facts=replace(seen().facts, packed=True))
    assert data_place(packed).pack() == "cp -r /fsx/packed /local/disk/packed"
    smaller = data_place(packed).pack("max_side=500")
    assert "/fsx/packed" not in smaller, "which are the images' own folder no longer"


def test_a_callback_is_left_out_by_a_word_that_the_shell_leaves_alone() -> None:
    callbacks = {"mine": {"_target_": "callbacks.mine.Mine"}}
    run = change(STORIES["slow_callback"], config={"callbacks": callbacks})
    (command,) = finding_of("slow_callback", run).commands
    assert command.endswith(" '~callbacks.mine'"), "a bare ~word may be a home"


@pytest.mark.parametrize(
    ("switches", "overrides"),
    [
        ({}, ("compile=true", "compile_mode=reduce-overhead")),
        ({"compile": True, "compile_mode": "default"}, ("compile_mode=reduce-overhead",)),
        ({"compile": False, "compile_mode": "max-autotune"}, ("compile=true", "compile_mode=reduce-overhead")),
        ({"cuda_graph": True, "compile": False, "compile_mode": "default"}, ()),
        ({"compile": True, "compile_mode": "reduce-overhead"}, ()),
        ({"compile": True, "compile_mode": "max-autotune"}, ()),
    ],
)
def test_no_second_kind_of_cuda_graphs_is_prescribed(switches: dict[str, Any], overrides: tuple[str, ...]) -> None:
    """Acceleration refuses compile_mode=reduce-overhead beside cuda_graph=true."""
    run = change(STORIES["launch_bound"], config={"callbacks": {"acceleration": switches}})
    found = finding_of("launch_bound", run)
    assert found.fired and found.overrides == tuple(f"callbacks.acceleration.{one}" for one in overrides)
    assert ("CUDA graphs" in found.remedy) == bool(overrides)


@pytest.mark.parametrize(("resize_on", "has_gpu"), [("device", True), ("worker", True), ("worker", False)])
def test_the_gpu_is_told_to_resize_where_there_is_one_that_does_not(resize_on: str, has_gpu: bool) -> None:
    slow = STORIES["slow_decode"]
    facts = replace(slow.facts, has_gpu=has_gpu, resize_on=resize_on)
    found = finding_of("slow_decode", change(slow, simulated=None, facts=facts))
    told = resize_on == "worker" and has_gpu
    assert found.fired and ("resize_on=device" in found.remedy) == bool(found.overrides) == told


@pytest.mark.parametrize(
    ("in_slurm", "command"), [(False, "taskset --cpu-list 0-3 "), (True, "sbatch --cpus-per-task=4 ")]
)
def test_a_slurm_job_asks_slurm_for_its_cpus(in_slurm: bool, command: str) -> None:
    few = STORIES["few_cpus"]
    (found,) = finding_of("few_cpus", change(few, facts=replace(few.facts, in_slurm=in_slurm))).commands
    assert found.startswith(command)


def test_processes_are_looked_at_by_their_ids() -> None:
    assert list_processes("java (pid 8), python (pid 71)").endswith("-p 8,71")
    assert list_processes("").startswith("top ")


def test_each_waiting_line_has_something_to_write_instead() -> None:
    first, second = without_waiting("item at mine.py:7, __odd__ at loss.py:9")
    assert first == "mine.py:7: x.detach() instead of x.item()"
    assert second == "loss.py:9: keep the result of __odd__ on the GPU"


@pytest.mark.parametrize("cause", sorted(STORIES.keys() - {"healthy", "unexplained"}))
def test_each_cause_has_something_to_type(cause: str) -> None:
    found = finding_of(cause, STORIES[cause])
    assert found.overrides or found.commands
    assert not any("..." in word for word in shlex.split(" ".join(found.commands)) if word.startswith("data."))
