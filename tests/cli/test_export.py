"""Exported files opened by timm and ONNX Runtime, and messages about networks that cannot be exported."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import timm
import torch
from safetensors import safe_open
from torch import Tensor, nn

import imagenet_opt
from imagenet_opt.cli.export import main
from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, ConfigError
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.network import build_network
from tests.cli.conftest import save

SIZE = 32


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A small ResNet with trained statistics, so that batch norm changes its logits."""
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("test_resnet", num_classes=3).to(memory_format=torch.channels_last)
    network.train()
    with torch.no_grad():
        network(images(16) * 2 + 1)
    return network.eval()


@pytest.fixture
def ckpt(network: nn.Module, tmp_path: Path) -> Path:
    return save(tmp_path / "run", network)


def images(num: int, size: int = SIZE) -> Tensor:
    return torch.randn(num, 3, size, size, generator=torch.Generator().manual_seed(num))


def logits(network: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        result: Tensor = network(images)
    return result


def test_safetensors_opens_in_plain_timm_with_the_same_logits(
    ckpt: Path, network: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    main([f"ckpt={ckpt.parent}", "image_size=48"])
    file = ckpt.with_suffix(".safetensors")
    opened = timm.create_model("test_resnet", num_classes=3, checkpoint_path=str(file)).eval()
    assert torch.equal(logits(opened, images(4)), logits(network.to(memory_format=torch.contiguous_format), images(4)))
    opening = f"timm.create_model('test_resnet', num_classes=3, checkpoint_path='{file}')"
    assert capsys.readouterr().out.endswith(f"{opening}\n")
    assert sorted(path.name for path in ckpt.parent.iterdir()) == ["last.ckpt", "last.safetensors"]
    with safe_open(file, "pt") as opened_file:
        metadata = opened_file.metadata()
    assert metadata.pop("name") == "test_resnet"
    expected = {"num_classes": 3, "blurpool": False, "small_stem": False, "image_size": 48}
    normalised = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    assert {key: json.loads(value) for key, value in metadata.items()} == expected | normalised
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(ckpt.stat().st_mode), "as the umask allows"


@pytest.mark.parametrize("blurpool", [True, "strided_convs"])
def test_timm_refuses_a_network_with_blurs_and_it_opens_as_the_command_says(
    blurpool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    blurred = build_network("resnet10t", num_classes=3, blurpool=blurpool).eval()
    ckpt = save(tmp_path / "run", blurred, name="resnet10t", blurpool=blurpool)
    main([f"ckpt={ckpt}"])
    file = ckpt.with_suffix(".safetensors")
    with pytest.raises(RuntimeError, match="Unexpected key"):
        timm.create_model("resnet10t", num_classes=3, checkpoint_path=str(file))
    names = {"imagenet_opt": imagenet_opt, "safetensors": safetensors}
    exec(capsys.readouterr().out.partition("opens with ")[2], names)
    torch.testing.assert_close(logits(names["network"].eval(), images(4)), logits(blurred, images(4)))
    load_initial_weights(blurred, "resnet10t", init_from=str(file), network_config={"blurpool": blurpool})


@pytest.mark.slow
def test_onnx_gives_the_same_logits_for_any_batch_size(ckpt: Path, network: nn.Module, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "model.onnx"
    main([f"ckpt={ckpt}", "format=onnx", f"out={out}"])
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (inputs,) = session.get_inputs()
    assert (inputs.name, inputs.type, inputs.shape) == ("images", "tensor(float)", ["batch", 3, SIZE, SIZE])
    for num in (1, 5):
        (outputs,) = session.run(["logits"], {"images": images(num).numpy()})
        np.testing.assert_allclose(outputs, logits(network, images(num)).numpy(), atol=1e-4, rtol=0)
    assert session.get_modelmeta().custom_metadata_map["mean"] == "[0.485, 0.456, 0.406]"
    assert str(Path(timm.__file__).parent).encode() not in out.read_bytes()  # stack traces would name folders
    assert list(out.parent.iterdir()) == [out]


def test_an_unusable_checkpoint_is_refused_and_an_earlier_file_stays(network: nn.Module, tmp_path: Path) -> None:
    def refused(ckpt: Path, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            main([f"ckpt={ckpt}", f"out={out}"])
        assert out.read_bytes() == before

    good, out = save(tmp_path / "good", network), tmp_path / "model.safetensors"
    main([f"ckpt={good}", f"out={out}"])
    before, weights = out.read_bytes(), torch.load(good)
    refused(tmp_path, CheckpointNotFound, re.escape(f"{tmp_path}/last.ckpt (ckpt)"))
    refused(save(tmp_path / "other", network, num_classes=4), CheckpointMismatch, r"fc\.weight")
    torch.save(weights | {"network_config": {"name": "test_resnet"}}, tmp_path / "old.ckpt")
    refused(tmp_path / "old.ckpt", CheckpointError, "network_config: num_classes")
    weights["network"]["fc.bias"].fill_(torch.nan)
    torch.save(weights, tmp_path / "diverged.ckpt")
    refused(tmp_path / "diverged.ckpt", CheckpointError, "ckpt=")
    good.write_bytes(good.read_bytes()[:2000])
    refused(good, CheckpointError, re.escape(f"{good} "))


def test_an_unsuitable_image_size_and_an_unwritable_file_are_named(ckpt: Path, tmp_path: Path) -> None:
    vit = save(tmp_path / "vit", timm.create_model("test_vit3", num_classes=3), name="test_vit3", image_size=160)
    with pytest.raises(ConfigError, match="image_size=32"):
        main([f"ckpt={vit}", "image_size=32"])
    with pytest.raises(ConfigError, match="out=FILE"):
        main([f"ckpt={ckpt}", f"out={ckpt}/model.safetensors"])
    assert not list(tmp_path.glob("*model*"))
