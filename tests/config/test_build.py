"""From a configuration to a run: the objects, and the messages about mistakes."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from imagenet_opt import errors
from imagenet_opt.config.build import num_processes, precision_of
from imagenet_opt.config.dataset import check_folders
from imagenet_opt.run.numbers import read_rows
from imagenet_opt.training.build_run import build_run
from tests.config.configs import tiny

MOST = ("cifar10", "fixres", "imagenette", "rn18_ffcv", "rn50_a2", "rn50_mild")
"""Together they have the losses, schedules, optimizers, options of networks and callbacks of all recipes."""


@pytest.mark.parametrize("recipe", ["aggressive", *(pytest.param(name, marks=pytest.mark.slow) for name in MOST)])
def test_every_recipe_builds_on_any_number_of_classes(recipe: str, images_root: Path, tmp_path: Path) -> None:
    offline = ("model.pretrained=false", "model.freeze=null")
    small = ("data.global_batch_size=null", "model.small_stem=false")  # test_resnet has its own stem
    run = build_run(tiny(tmp_path, images_root, f"experiment={recipe}", *small, *offline))
    assert run.data.num_classes == 3
    assert run.model.net.get_classifier().out_features == 3
    assert run.checkpoint is None


WRONG_VALUES = (
    "data.val_crop_ratio=7",
    "model.label_smoothing=2",
    "optimizer.weight_decay=-1",
    "schedule.final_factor=-1",
)
"""Overrides that the message repeats."""


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        *((word, errors.ConfigError, (word,)) for word in WRONG_VALUES),
        ("data.root=/nowhere", errors.DatasetNotFound, ("/nowhere", "data.root", "data=demo")),
        ("resume_from=/nowhere/last.ckpt", errors.CheckpointNotFound, ("/nowhere/last.ckpt", "resume_from")),
        ("callbacks.checkpoint.monitor=val/acc5", errors.ConfigError, ("callbacks.checkpoint.monitor", "val/acc1")),
        ("model.num_classes=2", errors.ConfigError, ("3 classes", "model.num_classes")),
        (
            "allow_targets=[tests] +callbacks.mine._target_=tests.conftest.nope",
            errors.ConfigError,
            ("callbacks.mine._target_=tests.conftest.nope cannot be found", "tests.conftest has no nope"),
        ),
        ("+callbacks.mixin.mode=on", errors.ConfigError, ("callbacks.mixin", "mixing")),
        ("trainer.num_nodes=0", errors.ConfigError, ("trainer.num_nodes=0", "at least 1")),
        ("trainer.accelerator=gpu", errors.ConfigError, ("trainer.accelerator=gpu", "no GPU", "nvidia-smi")),
        ("model.freeze=all_but_head", errors.ConfigError, ("model.freeze=all_but_head", "random; set model.init_from")),
        ("callbacks.acceleration.compile_mode=foo", errors.ConfigError, ("compile_mode='foo'", "max-autotune")),
        (
            "model.name=vit_tiny_patch16_224 data.image_size=224 data.val_image_size=256",
            errors.ConfigError,
            ("no images of 256 pixels", "data.val_image_size", "Set the size to 224", "model.options.img_size=256"),
        ),
        ("+optimizer.maximize=on", errors.ConfigError, ("optimizer.maximize='on'", "write true")),
        ("optimizer.momentum=null", errors.ConfigError, ("optimizer.momentum=null", "number")),
        ("optimizer=adamw optimizer.betas=0.9", errors.ConfigError, ("optimizer.betas=0.9", "list")),
        ("trainer.precision=17-mixed", errors.ConfigError, ("trainer.precision=17-mixed", "'mixed'", "'32-true'")),
    ],
)
def test_mistakes_name_the_key_and_the_remedy(
    overrides: str, error: type[Exception], words: tuple[str, ...], images_root: Path, tmp_path: Path
) -> None:
    config = tiny(tmp_path, images_root, *overrides.split())
    with pytest.raises(error) as caught:
        check_folders(config)
        build_run(config)
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_last_step_before_max_time_has_a_row(images_root: Path, tmp_path: Path) -> None:
    run = build_run(tiny(tmp_path, images_root, "+trainer.max_time={microseconds:1}", "trainer.log_every_n_steps=6"))
    run.trainer.fit(run.model, datamodule=run.data)
    ((step, row),) = read_rows(tmp_path / "run/metrics.csv")
    assert (step, run.trainer.global_step) == (0, 1)
    assert row.keys() >= {"train/loss", "lr", "throughput/images_per_second", "val/acc1"}


def test_options_of_timms_network_are_built_and_stored(images_root: Path, tmp_path: Path) -> None:
    words = ("model.name=test_vit", "++model.options.img_size=32", "++model.options.init_values=1e-3")
    run = build_run(tiny(tmp_path, images_root, *words))
    assert run.model.net.pos_embed.shape[1] == 1 + (32 // 16) ** 2
    assert run.model.net.blocks[0].ls1.gamma[0].item() == pytest.approx(1e-3)
    assert run.model.network_config["options"] == {"img_size": 32, "init_values": 1e-3}


def test_synchronised_batch_norms_keep_the_activations_inside_them(images_root: Path, tmp_path: Path) -> None:
    words = ("model.name=efficientnet_b0", "+trainer.sync_batchnorm=true", "trainer.strategy=ddp")
    run = build_run(tiny(tmp_path, images_root, *words))
    images = torch.rand(2, 3, 32, 32, generator=torch.manual_seed(0))
    before = run.model.net.eval()(images)
    run.trainer.strategy._layer_sync.apply(run.model)  # type: ignore[attr-defined]
    assert any(isinstance(part, torch.nn.SyncBatchNorm) for part in run.model.net.modules())
    torch.testing.assert_close(run.model.net.eval()(images), before)


def test_a_data_set_smaller_than_a_batch_is_refused_before_anything_is_built(images_root: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path, images_root, "data.batch_size=20", "trainer.devices=2")
    with pytest.raises(errors.BatchTooLarge, match=r"data\.batch_size=19 or less"):
        build_run(config)
    assert not any(Path(config.run_folder).iterdir())


@pytest.mark.parametrize(("devices", "num"), [("auto", 1), ("2", 2), (2, 2), ("0,1", 2), ("1,", 1), ([0, 1, 2], 3)])
def test_number_of_processes(devices: object, num: int) -> None:
    config = OmegaConf.create({"trainer": {"devices": devices, "num_nodes": "2"}})
    assert num_processes(config, torch.device("cpu")) == (num, 2 * num)


def test_mixed_precision_follows_the_device() -> None:
    assert precision_of("32-true", torch.device("cpu")) == "32-true"
    fast = torch.cpu._is_avx512_bf16_supported()
    assert precision_of("mixed", torch.device("cpu")) == ("bf16-mixed" if fast else "32-true")
    assert precision_of("mixed", torch.device("cpu"), image_size=31) == "32-true"
