"""From a configuration to a run: what is built, and what a mistake is told."""

import logging
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import DictConfig

from imagenet_opt import errors
from imagenet_opt.config.build import precision_of
from imagenet_opt.config.dataset import check_folders
from imagenet_opt.config.overrides import complete, config_folder
from imagenet_opt.machine import usable_cpus
from imagenet_opt.run.loggers.truncate import TruncateLogs
from imagenet_opt.run.rank_check import RankCheck
from imagenet_opt.training.build_run import build_run
from tests.config.configs import composed, tiny

RECIPES = sorted(file.stem for file in (config_folder() / "experiment").glob("*.yaml"))


def test_there_are_recipes() -> None:
    assert {"demo", "aggressive", "baseline"} <= set(RECIPES)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "demo"])
def test_every_recipe_builds_on_any_number_of_classes(recipe: str, images_root: Path, tmp_path: Path) -> None:
    stem = "model.small_stem=false"  # test_resnet has a stem of its own
    offline = ("model.pretrained=false", "model.freeze=null")
    small = ("data.global_batch_size=null", "data.batch_size=6")
    run = build_run(tiny(tmp_path, images_root, f"experiment={recipe}", *small, stem, *offline))
    assert run.data.num_classes == 3
    assert run.model.net.get_classifier().out_features == 3
    assert run.checkpoint is None


def test_aggressive_and_baseline_differ_in_the_knobs_only(tmp_path: Path) -> None:
    configs = [composed(tmp_path, "data.root=/data", f"experiment={name}") for name in ("baseline", "aggressive")]
    flat = [_flat(config) for config in configs]
    different = {key for key in flat[0].keys() | flat[1].keys() if flat[0].get(key) != flat[1].get(key)}
    assert different == {
        "data.batch_size",
        "data.num_workers",
        "data.prefetch_factor",
        "optimizer.fused",
        "trainer.precision",
        "callbacks.acceleration.channels_last",
        "callbacks.acceleration.tf32",
        "callbacks.acceleration.cudnn_benchmark",
        "callbacks.acceleration.compile",
        "callbacks.mixing.mode",
    }
    assert flat[1]["optimizer.lr"] * flat[1]["data.batch_size"] / 256 == 0.75


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        (("data.root=null",), errors.DatasetNotFound, ("data.root", "data=demo")),
        (("data.root=/nowhere",), errors.DatasetNotFound, ("/nowhere", "data.root", "data=demo")),
        (("model.name=resnet5O",), errors.UnknownModel, ("resnet5O", "model.name", "resnet50")),
        (("model.num_classes=2",), errors.ConfigError, ("3 classes", "model.num_classes")),
        (("data.batch_size=0",), errors.ConfigError, ("data.batch_size=0",)),
        (("data.batch_size=many",), errors.ConfigError, ("data.batch_size=many",)),
        (("+data.colour=red",), errors.ConfigError, ("colour",)),
        (("+trainer.max_epoch=3",), errors.ConfigError, ("trainer", "max_epoch")),
        (("callbacks.mixing.mode=auto",), errors.ConfigError, ("callbacks.mixing.mode=auto must be 'on' or 'off'",)),
        (("resume_from=/nowhere/last.ckpt",), errors.CheckpointNotFound, ("/nowhere/last.ckpt", "resume_from")),
        (("trainer.max_steps=abc",), errors.ConfigError, ("trainer.max_steps=abc",)),
        (("trainer.max_epochs=abc",), errors.ConfigError, ("trainer.max_epochs=abc",)),
        (("optimizer.lr=fast",), errors.ConfigError, ("optimizer.lr=fast",)),
        (("seed=abc",), errors.ConfigError, ("seed=abc",)),
        (("trainer.max_steps=1.5",), errors.ConfigError, ("trainer.max_steps=1.5",)),
        (
            ("allow_targets=[tests]", "+callbacks.mine._target_=tests.conftest.nope"),
            errors.ConfigError,
            ("callbacks.mine._target_=tests.conftest.nope cannot be found",),
        ),
        (("trainer.accelerator=gpu",), errors.ConfigError, ("trainer.accelerator=gpu", "no GPU", "nvidia-smi")),
        (("checkpoint.keep=two",), errors.ConfigError, ("keep=two",)),
        (("model.micro_batch_size=abc",), errors.ConfigError, ("model.micro_batch_size=abc",)),
        (("model.label_smoothing=2",), errors.ConfigError, ("model.label_smoothing=2",)),
        (("schedule.final_factor=abc",), errors.ConfigError, ("schedule.final_factor=abc",)),
        (("data.crop_scale=[1,-0.5]",), errors.ConfigError, ("data.crop_scale=[1, -0.5]", "[0.08, 1.0]")),
        (("data.train_crop=centre",), errors.ConfigError, ("data.train_crop=centre must be one of random, center",)),
        (
            ("model.freeze=all_but_head",),
            errors.ConfigError,
            ("model.freeze=all_but_head", "random; set model.init_from"),
        ),
        (
            ("experiment=fixres",),
            errors.ConfigError,
            ("model.freeze=all_but_head_and_last_norm", "model.pretrained=true"),
        ),
        (("data.val_crop_ratio=7",), errors.ConfigError, ("data.val_crop_ratio=7",)),
        (("data.samples_per_epoch=abc",), errors.ConfigError, ("data.samples_per_epoch=abc",)),
        (("callbacks.acceleration.compile_mode=foo",), errors.ConfigError, ("compile_mode='foo'", "max-autotune")),
        (("callbacks.acceleration.on_failure=stopp",), errors.ConfigError, ("on_failure=stopp", "eager")),
        (
            ("model.name=vit_tiny_patch16_224", "data.image_size=224", "data.val_image_size=256"),
            errors.ConfigError,
            ("no images of 256 pixels", "data.val_image_size", "model (224)"),
        ),
        (("trainer.precision=17-mixed",), errors.ConfigError, ("trainer.precision=17-mixed", "'mixed'", "'32-true'")),
        (("trainer.precision=fp16",), errors.ConfigError, ("or '16-true' or", "; did you mean 16-mixed?")),
    ],
)
def test_mistakes_name_the_key_and_the_remedy(
    overrides: tuple[str, ...], error: type[Exception], words: tuple[str, ...], images_root: Path, tmp_path: Path
) -> None:
    config = tiny(tmp_path, images_root, *overrides)
    with pytest.raises(error) as caught:
        check_folders(config)
        build_run(config)
    for word in words:
        assert word in str(caught.value)


def test_a_network_of_more_classes_than_the_data_is_told(
    images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        build_run(tiny(tmp_path, images_root, "model.num_classes=1000"))
    assert "the network has 1000 classes (model.num_classes), the data 3; model.num_classes=null follows" in caplog.text


def test_a_run_folder_that_cannot_be_made_is_named(images_root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.RunFolderError, match=r"hydra\.run\.dir"):
        build_run(tiny(tmp_path, images_root, f"run_folder={tmp_path}/file/run"))


def test_a_logger_that_is_not_installed_is_said_with_its_command(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        monkeypatch.setattr(f"lightning.fabric.loggers.tensorboard.{name}", False)
    with pytest.raises(errors.ConfigError) as caught:
        build_run(tiny(tmp_path, images_root, "logger=tensorboard"))
    assert str(caught.value) == (
        'logger.tensorboard needs a package that is not installed: pip install "imagenet-opt[tensorboard]"'
    )


DEFAULT_CALLBACKS = next(
    group["callbacks"]
    for group in yaml.safe_load((config_folder() / "train.yaml").read_text())["defaults"]
    if "callbacks" in group
)


@pytest.mark.parametrize("name", DEFAULT_CALLBACKS)
def test_a_run_trains_without_any_one_callback_and_gets_no_substitute(
    name: str, images_root: Path, tmp_path: Path
) -> None:
    config = tiny(tmp_path, images_root, "trainer.max_steps=1", f"~callbacks.{name}")
    run = build_run(config)
    used = Counter(type(callback).__module__ for callback in run.trainer.callbacks)  # type: ignore[attr-defined]
    others = [node._target_.rpartition(".")[0] for node in config.callbacks.values()]
    assert used == Counter([*others, RankCheck.__module__, TruncateLogs.__module__])
    run.trainer.fit(run.model, datamodule=run.data)
    assert run.trainer.global_step == 1
    assert [file.name for file in tmp_path.rglob("last.ckpt")] == ([] if name == "checkpoint" else ["last.ckpt"])
    if name == "checkpoint":
        assert not list(tmp_path.rglob("*.ckpt"))


def test_lightnings_own_callbacks_may_be_asked_for(images_root: Path, tmp_path: Path) -> None:
    words = ("~callbacks.checkpoint", "~callbacks.progress_bar", "+trainer.enable_progress_bar=true")
    theirs = "+callbacks.theirs._target_=lightning.pytorch.callbacks.ModelCheckpoint"
    trainer = build_run(tiny(tmp_path, images_root, *words, theirs)).trainer
    assert type(trainer.checkpoint_callback).__name__ == "ModelCheckpoint"
    assert trainer.progress_bar_callback is not None


def test_more_processes_than_cpus_are_told(images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cpus = usable_cpus()
    with caplog.at_level(logging.INFO):
        build_run(tiny(tmp_path, images_root, "data.batch_size=1"))
        assert "usable CPUs" not in caplog.text
        build_run(tiny(tmp_path, images_root, "data.batch_size=1", f"trainer.devices={cpus + 1}"))
    assert f"{cpus + 1} processes (trainer.devices) share {cpus} usable CPUs" in caplog.text


def test_the_batch_that_cannot_be_filled_is_told_before_training(images_root: Path, tmp_path: Path) -> None:
    run = build_run(tiny(tmp_path, images_root, "data.batch_size=40"))
    with pytest.raises(errors.BatchTooLarge, match=r"data\.batch_size to at most 39"):
        run.trainer.fit(run.model, datamodule=run.data)


def test_the_learning_rate_is_scaled_and_said(
    images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        build_run(tiny(tmp_path, images_root, "data.batch_size=32", "optimizer.lr=0.5"))
    assert "batch 32, lr 0.0625" in caplog.text


def test_mixed_precision_follows_the_device() -> None:
    assert precision_of("32-true", torch.device("cpu")) == "32-true"
    fast = torch.cpu._is_avx512_bf16_supported()
    assert precision_of("mixed", torch.device("cpu")) == ("bf16-mixed" if fast else "32-true")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], ["experiment=demo"]),
        (["data=demo"], ["experiment=demo", "data=demo"]),
        (["data.root=/d", "--cfg", "job"], ["data=folder", "data.root=/d", "--cfg", "job"]),
        (["+experiment=baseline"], ["experiment=baseline"]),
        (["data=demo", "experiment=[baseline,mine]"], ["data=demo", "experiment=[baseline,mine]"]),
        (["--cfg", "job", "data=demo"], ["--cfg", "job", "experiment=demo", "data=demo"]),
        (["--help"], ["--help"]),
        (["rehearse=a10g"], ["experiment=demo", "rehearse=a10g"]),
        (
            ["+rehearse=a10g", "data.root=/d", "experiment=baseline", "--cfg", "job"],
            ["rehearse=a10g", "data.root=/d", "experiment=baseline", "--cfg", "job"],
        ),
        (["rehearse=null", "experiment=null"], ["~rehearse", "~experiment"]),
    ],
)
def test_what_the_command_line_implies(given: list[str], meant: list[str]) -> None:
    assert complete(given) == meant
    assert complete(complete(given)) == meant


def _flat(node: DictConfig, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key in node:
        if key == "run_folder":
            continue
        value = node[key]
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, DictConfig) else {f"{prefix}{key}": value}
    return found
