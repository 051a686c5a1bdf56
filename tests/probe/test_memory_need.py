"""The memory of a step, against measured and computed values, and the line that a run logs before training."""

import logging
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.optim import SGD

from imagenet_opt.probe import memory_need
from imagenet_opt.probe.memory_need import judge_need, need_of, step_memory
from imagenet_opt.training.build_run import build_run
from tests.config.configs import composed, tiny


def sgd(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.slow
def test_resnet_50_needs_the_memory_of_another_program() -> None:
    """11.6 GB at 256 images and 17.2 GB at 384: bfloat16 by autocast, channels_last, SGD with momentum."""
    with torch.device("meta"):
        net = timm.create_model("resnet50")
    need = step_memory(net, sgd, image_size=224, batch_size=256, autocast=torch.bfloat16, channels_last=True)
    assert need.num_bytes == pytest.approx(11.56e9, rel=0.01)
    assert need.num_bytes + 128 * need.bytes_per_image == pytest.approx(17.22e9, rel=0.01)


@pytest.mark.parametrize("num", [64, 8192])
def test_two_layers_need_the_memory_computed_by_hand(num: int) -> None:
    """float32: 4 bytes a value. With few images the peak is at the gradient of the first weights. With many images the
    peak is in the backward of ReLU, with its output, the output's gradient and the input's gradient."""
    pixels, hidden, classes = 3 * 16 * 16, 1024, 128
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, classes, bias=False)
    )
    need = step_memory(net, sgd, image_size=16, batch_size=num)
    first, second = 4 * pixels * hidden, 4 * hidden * classes
    weights_and_momentum = 2 * (first + second)
    batch, logits, activations = 4 * pixels + 8, 4 * classes + 4, 4 * hidden
    few = weights_and_momentum + second + first + num * (batch + logits + activations)
    many = weights_and_momentum + second + num * (batch + logits + 3 * activations)
    assert need.num_bytes == pytest.approx(max(few, many), rel=0.001)
    assert need.bytes_per_image == pytest.approx(batch + logits + (1 if num == 64 else 3) * activations, rel=0.001)


class DataDependent(nn.Module):
    """Needs the values of its tensors for its control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits: Tensor = self.layer(images_NCHW.mean((2, 3)))
        return logits if logits.sum() > 0 else -logits


def test_a_run_logs_whether_a_step_fits_and_trains_if_that_is_unknown(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "imagenet_opt")
    monkeypatch.setattr(memory_need, "gpu_bytes", lambda config: 2**20)
    build_run(tiny(tmp_path / "small", images_root))
    (line,) = (record for record in caplog.records if "a training step of" in record.message)
    assert line.levelname == "WARNING" and "data.image_size" in line.message and "model.name" in line.message
    caplog.clear()
    monkeypatch.setattr(memory_need, "trained_network", lambda *_: DataDependent())
    assert build_run(tiny(tmp_path / "other", images_root)).data.loading.batch_size == 6
    assert {record.levelname for record in caplog.records if "memory of a step" in record.message} == {"DEBUG"}


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
    assert fits is False and "data.batch_size" in text and "model.micro_batch_size=48" in text
    config.model.micro_batch_size = 48
    fits, text = judge_need(config, 3, card_bytes) or (None, "")
    assert fits is True and "100 images of 64 px, 34 at once" in text
