"""FLOPs of networks from papers."""

import pytest
import timm
import torch

from imagenet_opt.probe.model_flops import forward_flops


def test_resnet_50_has_the_published_flops() -> None:
    """4.1 G multiply-adds for 224 x 224 pixels with the stride in the 3x3 convolution (torchvision: 4.09 GFLOPS)."""
    with torch.device("meta"):
        net = timm.create_model("resnet50")
    assert forward_flops(net, 224) == pytest.approx(2 * 4.09e9, rel=0.01)
    assert forward_flops(net, 448) == pytest.approx(2 * 4.09e9 * 4, rel=0.01)


def test_counting_computes_and_changes_nothing() -> None:
    net = timm.create_model("test_resnet", num_classes=3).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    plain = forward_flops(net, 32)
    net._compiled_call_impl = lambda *_: pytest.fail("a compiled network was called")
    assert forward_flops(net, 32) == plain > 0
    assert net.training
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[key]), key
