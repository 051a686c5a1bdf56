from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from imagenet_opt.errors import ConfigError, UnknownModel
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep, types_of
from tests.study.studies import TINY

CPU = "trainer.accelerator=cpu"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_types_are_those_of_lightning(precision: str) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)  # type: ignore[arg-type]
    net = fabric.setup_module(torch.nn.Linear(2, 2))
    with fabric.autocast():
        product = net.module(torch.ones(1, 2, dtype=net.module.weight.dtype))
    assert types_of(precision) == (net.module.weight.dtype, product.dtype)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.precision=transformer-engine"):
        types_of("transformer-engine")


def test_a_step_as_configured() -> None:
    subject = SyntheticStep((*TINY, CPU, "trainer.precision=bf16-mixed", "callbacks.acceleration.channels_last=true"))
    net, (images, labels) = subject.net(), subject.batch()
    assert images.shape == (4, 3, 32, 32)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.dtype == torch.float32
    with subject.autocast():
        assert net(images).dtype == torch.bfloat16
    before = [parameter.clone() for parameter in net.parameters()]
    optimizer = subject.optimizer(net)
    subject.loss(net, images, labels).backward()
    optimizer.step()
    torch.testing.assert_close(list(net.parameters()), before, rtol=0, atol=0)
    assert "resnet10t, 4 images of 32 pixels, bf16-mixed, on the CPU" in str(subject)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="resnet5O"):
        SyntheticStep((*TINY, CPU, "model.name=resnet5O")).net()
    for wrong in ("data.batch_size=auto", "data.image_size=1.5"):
        with pytest.raises(ConfigError, match=wrong):
            SyntheticStep((*TINY, CPU, wrong))
