"""What is said of a step's memory before a run."""

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
    """Looks at its values."""

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


@pytest.mark.parametrize(("card_bytes", "level"), [(2**30, "INFO"), (2**20, "WARNING"), (None, None)])
def test_a_run_says_before_it_begins_whether_a_step_fits(
    card_bytes: int | None,
    level: str | None,
    images_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(memory_need, "gpu_bytes", lambda config: card_bytes)
    build_run(tiny(tmp_path, images_root))
    said = [(record.levelname, record.message) for record in logged.records if "a training step of" in record.message]
    assert [found for found, _ in said] == ([level] if level else []), "nothing on a CPU"
    if level == "WARNING":
        assert said[0][1].endswith(
            "Not even one image fits: lower data.image_size, choose a smaller model.name, or set "
            "callbacks.acceleration.gradient_checkpointing=true"
        )


@pytest.mark.slow
def test_what_does_not_fit_is_told_with_what_does(tmp_path: Path) -> None:
    config = composed(
        tmp_path, "data.root=/data", "model.name=test_resnet", "data.image_size=64", "data.batch_size=100"
    )
    need = need_of(config, 3, 50)
    assert need is not None
    found = judge_need(config, 3, int(need.num_bytes / 0.9))
    assert found is not None and not found[0]
    assert "About 48 images fit at once: lower data.batch_size, or set" in found[1]
    assert "model.micro_batch_size=40" in found[1], "three parts of 34 images, in eights"
    config.model.micro_batch_size = 40
    found = judge_need(config, 3, int(need.num_bytes / 0.9))
    assert found is not None and found[0]
    assert found[1].startswith("a training step of 100 images of 64 px, 34 at once, needs about ")


def test_a_network_that_looks_at_its_values_costs_only_the_line(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_need, "gpu_bytes", lambda config: 2**30)
    monkeypatch.setattr(memory_need, "build_network", lambda **_: DataDependent())
    assert build_run(tiny(tmp_path, images_root)).data.loading.batch_size == 6
    assert {record.levelname for record in logged.records if "memory of a step" in record.message} == {"DEBUG"}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb"])
def test_every_optimizer_is_known_and_no_random_number_is_drawn(optimizer: str, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    config = composed(tmp_path, "data.root=/data", "model.name=test_vit", f"optimizer={optimizer}")
    assert need_of(config, 3, 8) is not None
    assert torch.equal(torch.get_rng_state(), before)
