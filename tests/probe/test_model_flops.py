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


@pytest.mark.parametrize("name", ["test_resnet", "test_vit2"])
def test_counting_computes_and_changes_nothing(name: str) -> None:
    options = {"img_size": 32} if "vit" in name else {}
    net = timm.create_model(name, num_classes=3, **options).train()
    plain = forward_flops(net, 32)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.set_grad_checkpointing(True)
    net._compiled_call_impl = None if name == "test_vit2" else lambda *_: pytest.fail("a compiled network was called")
    assert forward_flops(net, 32) == plain > 0
    assert net.training
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[key]), key
