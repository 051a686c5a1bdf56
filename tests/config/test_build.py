"""From a configuration to the objects of a run."""

import math
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from imagenet_opt.config.build import num_processes, precision_of
from imagenet_opt.run.numbers import read_rows
from imagenet_opt.training.build_run import build_run
from tests.config.configs import fitted, tiny

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


def test_the_last_step_before_max_time_has_a_row(images_root: Path, tmp_path: Path) -> None:
    run = fitted(tiny(tmp_path, images_root, "+trainer.max_time={microseconds:1}", "trainer.log_every_n_steps=6"))
    ((step, row),) = read_rows(tmp_path / "run/metrics.csv")
    assert (step, run.trainer.global_step) == (0, 1)
    assert row.keys() >= {"train/loss", "lr", "throughput/images_per_second", "val/acc1"}


def test_options_of_timms_network_are_built_and_stored_and_bce_sum_starts_at_equal_probabilities(
    images_root: Path, tmp_path: Path
) -> None:
    words = (
        "model.name=test_vit",
        "++model.options.img_size=32",
        "++model.options.init_values=1e-3",
        "model.loss=bce_sum",
    )
    run = build_run(tiny(tmp_path, images_root, *words))
    assert run.model.net.pos_embed.shape[1] == 1 + (32 // 16) ** 2
    assert run.model.net.blocks[0].ls1.gamma[0].item() == pytest.approx(1e-3)
    assert run.model.network_config["options"] == {"img_size": 32, "init_values": 1e-3}
    assert run.model.net.head.bias.tolist() == pytest.approx([math.log(1 / 3)] * 3)


def test_synchronised_batch_norms_keep_the_activations_inside_them(images_root: Path, tmp_path: Path) -> None:
    words = ("model.name=efficientnet_b0", "+trainer.sync_batchnorm=true", "trainer.strategy=ddp")
    run = build_run(tiny(tmp_path, images_root, *words))
    images = torch.rand(2, 3, 32, 32, generator=torch.manual_seed(0))
    before = run.model.net.eval()(images)
    run.trainer.strategy._layer_sync.apply(run.model)  # type: ignore[attr-defined]
    assert any(isinstance(part, torch.nn.SyncBatchNorm) for part in run.model.net.modules())
    torch.testing.assert_close(run.model.net.eval()(images), before)


@pytest.mark.parametrize(("devices", "num"), [("auto", 1), ("2", 2), (2, 2), ("0,1", 2), ("1,", 1), ([0, 1, 2], 3)])
def test_number_of_processes(devices: object, num: int) -> None:
    config = OmegaConf.create({"trainer": {"devices": devices, "num_nodes": "2"}})
    assert num_processes(config, torch.device("cpu")) == (num, 2 * num)


def test_mixed_precision_follows_the_device() -> None:
    assert precision_of("32-true", torch.device("cpu")) == "32-true"
    fast = torch.cpu._is_avx512_bf16_supported()
    assert precision_of("mixed", torch.device("cpu")) == ("bf16-mixed" if fast else "32-true")
    assert precision_of("mixed", torch.device("cpu"), image_size=31) == "32-true"
