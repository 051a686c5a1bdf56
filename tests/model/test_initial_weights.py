"""The weights that a run begins with, and the errors for files that do not fit."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.network import build_network


def network(num_classes: int = 5, name: str = "resnet10t", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_network(name, num_classes=num_classes)


def load(net: nn.Module, file: Path, **options: Any) -> str:
    sentence = load_initial_weights(net, "resnet10t", init_from=str(file), **options)
    assert sentence is not None
    return sentence


def written(folder: Path, kind: str, net: nn.Module) -> Path:
    state, file, args = net.state_dict(), folder / "last.ckpt", Namespace(model="resnet10t", lr=0.1)
    other = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    if kind == "safetensors":
        file = folder / "weights.safetensors"
        save_file(state, file)
        return file
    content = {
        "a run's folder": {"network": state, "global_step": 1},
        "a state dict": state,
        "timm": {"arch": "resnet10t", "state_dict": other, "state_dict_ema": state, "args": args},
        "torchvision": {
            "model": other,
            "args": args,
            "model_ema": named("module.", state) | {"n_averaged": torch.ones(1)},
        },
        "Lightning": {"state_dict": named("model._orig_mod.", state), "pytorch-lightning_version": "2.6"},
        "DDP": {"model": named("module.", state), "args": args},
    }[kind]
    torch.save(content, file)
    return folder if kind == "a run's folder" else file


def named(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


KINDS = ("safetensors", "a run's folder", "a state dict", "timm", "torchvision", "Lightning", "DDP")


@pytest.mark.parametrize("kind", KINDS)
def test_all_weights_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    source, net = network(seed=1), network()
    load(net, written(tmp_path, kind, source))
    assert all(torch.equal(a, b) for a, b in zip(source.state_dict().values(), net.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("name", "heads"), [("resnet10t", {"fc"}), ("levit_128s", {"head.linear", "head_dist.linear"})]
)
def test_a_head_for_other_classes_stays_new(tmp_path: Path, name: str, heads: set[str]) -> None:
    """levit_128s is distilled and has two heads."""
    source, net = network(1000, name, seed=1), network(name=name)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    sentence = load(net, written(tmp_path, "safetensors", source))
    assert "1000 classes" in sentence and "new one for 5" in sentence
    for key, tensor in net.state_dict().items():
        of_head = key.rpartition(".")[0] in heads
        assert torch.equal(tensor, (before if of_head else source.state_dict())[key]), key


def test_weights_of_another_network_are_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"conv1.*model\.name"):
        load(network(), written(tmp_path, "safetensors", network(name="resnet18")))


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("none.safetensors", None, CheckpointNotFound, "model.init_from"),
        ("text.safetensors", b"no tensors", CheckpointError, "model.init_from"),
        ("text.pth", b"no tensors", CheckpointError, "model.init_from"),
        ("odd.pth", {"epoch": 3}, CheckpointError, "model.init_from"),
        ("keys.pth", {"network": {1: torch.zeros(2)}, "network_config": 5}, CheckpointError, "model.init_from"),
        ("meta.pth", {"network": {"fc.weight": torch.zeros(3, 4, device="meta")}}, CheckpointError, "model.init_from"),
        ("whole.pth", nn.Linear(1, 1), CheckpointError, "nn.modules.linear.Linear"),
    ],
)
def test_files_without_weights_are_refused(name: str, content: Any, error: type, words: str, tmp_path: Path) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises(error, match=rf"{name}.*{words}"):
        load(network(), tmp_path / name)


@pytest.mark.parametrize(
    ("saved", "now", "words"),
    [
        ({"mean": [0.5, 0.5, 0.5]}, {"mean": [0.485, 0.456, 0.406]}, r"set data\.mean=\[0\.5, 0\.5, 0\.5\]"),
        ({"blurpool": "strided_convs"}, {"blurpool": False}, "set model.blurpool=strided_convs"),
        ({"options": {"global_pool": "max"}}, {"options": {}}, "set model.options.global_pool=max"),
    ],
)
def test_weights_trained_with_other_settings_are_refused(
    saved: dict[str, Any], now: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """These weights have the same names and shapes, so they would load and give wrong answers."""
    net, files = network(), (tmp_path / "last.ckpt", tmp_path / "best.safetensors")
    torch.save({"network": net.state_dict(), "network_config": saved}, files[0])
    save_file(net.state_dict(), files[1], {key: json.dumps(value) for key, value in saved.items()})
    for file in files:
        with pytest.raises(CheckpointMismatch, match=words):
            load(net, file, network_config=now)
        assert load(net, file, network_config=saved)


@pytest.mark.parametrize(
    ("classes", "is_kept"), [(list("abcde"), True), (list("vwxyz"), False), (list("edcba"), False)]
)
def test_a_head_for_classes_of_other_names_is_replaced(classes: list[str], is_kept: bool, tmp_path: Path) -> None:
    source, net, file = network(seed=1), network(), tmp_path / "last.ckpt"
    torch.save({"network": source.state_dict(), "network_config": {"classes": list("abcde")}}, file)
    sentence = load(net, file, network_config={"classes": classes})
    assert torch.equal(net.fc.weight, source.fc.weight) is is_kept
    assert torch.equal(net.conv1[0].weight, source.conv1[0].weight)
    assert (", ".join(classes[:3]) in sentence) is not is_kept
