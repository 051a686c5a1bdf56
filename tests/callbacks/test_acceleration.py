"""Each switch does what it says, and leaves no trace after the fit."""

import pytest
import timm
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Plain, fitted, switched, weights

pytestmark = pytest.mark.usefixtures("compile_cache")
CHANNELS_LAST = torch.channels_last


def switches() -> tuple[str, bool, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark


def test_switches_are_on_during_the_fit_and_as_before_after_it_and_after_an_error(project) -> None:
    seen = []

    class Look(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
            last = [tensor.is_contiguous(memory_format=CHANNELS_LAST) for tensor in (batch[0], module.net[0].weight)]
            seen.append((*switches(), *last))

    before = switches()
    project.fit(switched(channels_last=True, tf32=True, cudnn_benchmark=True), Look())
    assert set(seen) == {("high", True, True, True, True)}
    seen.clear()
    project.fit(switched(), Look())
    assert set(seen) == {("highest", False, False, False, False)}
    failing = Callback()
    failing.on_train_batch_end = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        project.fit(switched(tf32=True, cudnn_benchmark=True), failing)
    assert switches() == before


def test_gradient_checkpointing_changes_no_weight(project) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return timm.create_model("test_vit2", num_classes=3, img_size=8, patch_size=4)

    plain = fitted(project, net=network())
    saving = fitted(project, switched(gradient_checkpointing=True), net=network())
    assert saving.net.grad_checkpointing
    torch.testing.assert_close(weights(saving), weights(plain), rtol=1e-4, atol=1e-5)


def test_a_cuda_graph_is_for_one_process() -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"cuda_graph=true.*trainer\.devices"):
        switched(cuda_graph=True).setup(trainer, Plain(), "fit")
