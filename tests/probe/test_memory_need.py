"""The memory need of a step that a run logs before training."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.probe import memory_need
from imagenet_opt.probe.memory_need import judge_need, need_of
from imagenet_opt.training.build_run import build_run
from tests.config.configs import composed, tiny


class DataDependent(nn.Module):
    """Needs the values of its tensors for its control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits: Tensor = self.layer(images_NCHW.mean((2, 3)))
        return logits if logits.sum() > 0 else -logits


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "imagenet_opt")
    return caplog


@pytest.mark.parametrize(("card_bytes", "level"), [(2**20, "WARNING"), (None, None)])
def test_a_run_logs_whether_a_step_fits(
    card_bytes: int | None,
    level: str | None,
    images_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(memory_need, "gpu_bytes", lambda config: card_bytes)
    build_run(tiny(tmp_path, images_root))
    lines = [(record.levelname, record.message) for record in logged.records if "a training step of" in record.message]
    assert [logged_level for logged_level, _ in lines] == ([level] if level else []), "nothing on a CPU"
    if level == "WARNING":
        assert lines[0][1].endswith(
            "Not even one image fits: lower data.image_size, choose a smaller model.name, or set "
            "callbacks.acceleration.gradient_checkpointing=true"
        )


def test_frozen_parts_keep_nothing_for_a_backward(tmp_path: Path) -> None:
    config = composed(tmp_path, "data.root=/data", "model.name=test_resnet", "data.image_size=64")
    whole = need_of(config, 3, 50)
    config.model.freeze = "all_but_head"
    frozen = need_of(config, 3, 50)
    assert whole is not None and frozen is not None
    assert frozen.num_bytes < whole.num_bytes / 2


@pytest.mark.slow
def test_a_step_that_does_not_fit_gets_a_size_that_fits(tmp_path: Path) -> None:
    small = ("model.name=test_resnet", "data.image_size=64", "data.batch_size=100")
    config = composed(tmp_path, "data.root=/data", *small)
    need = need_of(config, 3, 50)
    assert need is not None
    card_bytes = int(need.num_bytes / 0.9)
    fits, text = judge_need(config, 3, card_bytes) or (None, "")
    assert fits is False
    assert "About 48 images fit at once: lower data.batch_size, or set" in text
    assert "model.micro_batch_size=40" in text, "three parts of 34 images, in multiples of 8"
    config.model.micro_batch_size = 40
    fits, text = judge_need(config, 3, card_bytes) or (None, "")
    assert fits is True
    assert text.startswith("a training step of 100 images of 64 px, 34 at once, needs about ")


def test_a_network_with_control_flow_trains_without_the_line(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_need, "gpu_bytes", lambda config: 2**30)
    monkeypatch.setattr(memory_need, "build_network", lambda **_: DataDependent())
    assert build_run(tiny(tmp_path, images_root)).data.loading.batch_size == 6
    assert {record.levelname for record in logged.records if "memory of a step" in record.message} == {"DEBUG"}


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_each_optimizer_has_a_need_and_no_random_number_is_drawn(optimizer: str, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    config = composed(tmp_path, "data.root=/data", "model.name=test_vit", f"optimizer={optimizer}")
    assert need_of(config, 3, 8) is not None
    assert torch.equal(torch.get_rng_state(), before)
