"""Remedies can be typed, and change something."""

import shlex
from dataclasses import replace
from typing import Any

import pytest

from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.remedies import changing, data_place, list_processes, saves, without_waiting
from tests.doctor.diagnoses import change
from tests.doctor.stories import STORIES, finding_of, story


def configured(story: str = "healthy", **config: Any) -> Evidence:
    return change(STORIES[story], config=config)


def test_overrides_in_effect_are_left_out() -> None:
    run = configured(data={"num_workers": 4, "shuffle": "block"}, checkpoint={"every_n_steps": None}, on=True)
    same = ("data.num_workers=4", "data.shuffle=block", "checkpoint.every_n_steps=null", "on=true")
    assert changing(run, *same) == ()
    others = ("data.num_workers=3", "data.shuffle=global", "checkpoint.every_n_steps=8", "checkpoint.keep=2")
    assert changing(run, *others) == others
    assert changing(configured(data={"num_workers": "auto"}), "data.num_workers=4") == (), "as auto was resolved"


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
def test_checkpoints_are_not_written_more_often(steps: Any, minutes: Any, overrides: tuple[str, ...]) -> None:
    assert saves(configured(checkpoint={"every_n_steps": steps, "every_minutes": minutes})) == overrides


def test_another_callback_that_saves_is_named() -> None:
    callbacks = {
        "checkpoint": {"_target_": "imagenet_opt.callbacks.checkpoint.Checkpoint"},
        "mine": {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint"},
        "off": None,
    }
    own = {"every_n_steps": None, "every_minutes": 15}
    finding = finding_of("checkpoint_stall", configured("checkpoint_stall", checkpoint=own, callbacks=callbacks))
    assert finding.fired and not finding.overrides
    assert "callbacks.mine (ModelCheckpoint)" in finding.remedy and "callbacks.checkpoint" not in finding.remedy


def test_the_folder_is_that_of_the_run_and_quoted_for_the_shell() -> None:
    run = configured(data={"root": "/my data/$x", "train_folder": ".", "val_folder": "val"})
    assert shlex.split(data_place(run).words) == ["data.root=/my data/$x", "data.train_folder=."]
    assert shlex.split(data_place(run).pack())[2] == "data.root=/my data/$x"


@pytest.mark.parametrize("config", [{}, {"data": {"root": None}}, {"data": {"root": "${oc.env:DATA}"}}])
def test_an_unknown_folder_has_a_placeholder(config: dict[str, Any]) -> None:
    assert data_place(configured(**config)).words == "data.root=YOUR_FOLDER"


def test_shards_are_copied_and_not_packed() -> None:
    packed = change(configured(data={"root": "/fsx/packed"}), facts=replace(story().facts, packed=True))
    assert data_place(packed).pack() == "cp -r /fsx/packed /local/disk/packed"
    smaller = data_place(packed).pack("max_side=500")
    assert "/fsx/packed" not in smaller, "only the original images can become smaller"


def test_the_argument_that_removes_a_callback_is_quoted() -> None:
    run = configured("slow_callback", callbacks={"mine": {"_target_": "callbacks.mine.Mine"}})
    (command,) = finding_of("slow_callback", run).commands
    assert command.endswith(" '~callbacks.mine'"), "a bare ~word may be a home folder"


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
def test_no_second_kind_of_cuda_graphs_is_advised(switches: dict[str, Any], overrides: tuple[str, ...]) -> None:
    """Acceleration refuses compile_mode=reduce-overhead beside cuda_graph=true."""
    finding = finding_of("launch_bound", configured("launch_bound", callbacks={"acceleration": switches}))
    assert finding.fired and finding.overrides == tuple(f"callbacks.acceleration.{switch}" for switch in overrides)
    assert ("CUDA graphs" in finding.remedy) == bool(overrides)


@pytest.mark.parametrize(("resize_on", "has_gpu"), [("device", True), ("worker", True), ("worker", False)])
def test_resizing_on_the_gpu_is_advised_if_the_cpu_resizes_and_there_is_a_gpu(resize_on: str, has_gpu: bool) -> None:
    slow = STORIES["slow_decode"]
    facts = replace(slow.facts, has_gpu=has_gpu, resize_on=resize_on)
    finding = finding_of("slow_decode", change(slow, simulated=None, facts=facts))
    advised = resize_on == "worker" and has_gpu
    assert finding.fired and ("resize_on=device" in finding.remedy) == bool(finding.overrides) == advised


@pytest.mark.parametrize(
    ("in_slurm", "start"), [(False, "taskset --cpu-list 0-3 "), (True, "sbatch --cpus-per-task=4 ")]
)
def test_a_slurm_job_requests_its_cpus_from_slurm(in_slurm: bool, start: str) -> None:
    few = STORIES["few_cpus"]
    (command,) = finding_of("few_cpus", change(few, facts=replace(few.facts, in_slurm=in_slurm))).commands
    assert command.startswith(start)


def test_processes_are_listed_by_pid() -> None:
    assert list_processes("java (pid 8), python (pid 71)").endswith("-p 8,71")
    assert list_processes("").startswith("top ")


def test_each_waiting_line_has_a_replacement() -> None:
    first, second = without_waiting("item at mine.py:7, __odd__ at loss.py:9")
    assert first == "mine.py:7: x.detach() instead of x.item()"
    assert second == "loss.py:9: keep the result of __odd__ on the GPU"


@pytest.mark.parametrize("cause", sorted(STORIES.keys() - {"healthy", "unexplained"}))
def test_each_cause_has_a_command(cause: str) -> None:
    finding = finding_of(cause, STORIES[cause])
    assert finding.overrides or finding.commands
    assert not any("..." in word for word in shlex.split(" ".join(finding.commands)) if word.startswith("data."))
