"""Networks by name, their options, and the errors for options that do not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from imagenet_opt.errors import ModelError
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.network import build_network


def test_a_small_stem_has_small_stride_and_kernel_keeps_small_images_large_and_learns() -> None:
    images = torch.randn(2, 3, 32, 32)
    assert build_network("resnet18", num_classes=3).forward_features(images).shape[-1] == 1
    small = build_network("resnet18", num_classes=3, small_stem=True)
    assert small.forward_features(images).shape[-1] == 4
    small(images).sum().backward()
    assert small.conv1.weight.shape == (64, 3, 3, 3)
    assert small.conv1.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_ffcvs_blurpool_is_in_front_of_six_convolutions(name: str) -> None:
    network = build_network(name, num_classes=10, blurpool="strided_convs")
    blurred = [name.removesuffix(".blur") for name, _ in network.named_buffers() if name.endswith(".blur")]
    conv = "conv1" if name == "resnet18" else "conv2"
    assert sorted(blurred) == sorted(f"layer{i}.0.{part}" for i in (2, 3, 4) for part in (conv, "downsample.0"))
    plain = build_network(name, num_classes=10)
    assert plain.state_dict().keys() == network.state_dict().keys()
    layer, images = network.layer2[0].downsample[0], torch.randn(2, network.layer2[0].downsample[0].in_channels, 9, 9)
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    blur = sum(kernel[i, j] * padded[:, :, i : i + 9, j : j + 9] for i in range(3) for j in range(3))
    expected = nn.functional.conv2d(blur, layer.weight, stride=layer.stride, padding=layer.padding)
    torch.testing.assert_close(layer(images), expected)


def test_without_a_network_the_client_of_the_hub_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"model\.pretrained=true"):
        load_initial_weights(nn.Identity(), "resnet10t", pretrained=True)
    assert "thrown while requesting" not in caplog.text


def copies_from_the_host(network: nn.Module) -> list[str]:
    """Operations of a training forward that read a tensor which is neither a weight, a buffer nor an image, and so was
    made on the host."""
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())

    def forward(tensors: dict[str, torch.Tensor], images: torch.Tensor) -> Any:
        return functional_call(network, tensors, images)

    nodes = make_fx(forward, tracing_mode="fake")(tensors, torch.empty(2, 3, 32, 32)).graph.nodes
    made = [node for node in nodes if node.op == "get_attr"]
    return [str(node.target) for node in nodes if {*node.all_input_nodes} & {*made} or "lift_fresh" in str(node.target)]


@pytest.mark.parametrize("blurpool", [True, "strided_convs"])
def test_a_forward_with_blurpool_copies_nothing_from_the_host(blurpool: Any) -> None:
    """Otherwise it could not be captured as a CUDA graph. A forward that reads a value of a tensor cannot be traced."""
    assert copies_from_the_host(build_network("resnet18", num_classes=10, blurpool=blurpool)) == []
