"""Accuracy, loss and calibration against their formulas, and the images that a network sees."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.data.transforms.image_format import MEAN, STD
from imagenet_opt.errors import CheckpointMismatch, ConfigError
from imagenet_opt.evaluate.evaluate import evaluate
from imagenet_opt.evaluate.network import Network
from imagenet_opt.evaluate.result import Result, tables
from imagenet_opt.evaluate.view import View, view_of
from imagenet_opt.model.saved_network import on_device
from tests.conftest import loading

VIEW = View(16, 0.875)


class Recorder(nn.Module):
    """Logits that depend on the left and right half of an image; records images and logits."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(6, num_classes)
        self.images: list[Tensor] = []
        self.logits: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        halves = torch.cat([half.mean((2, 3)) for half in images.chunk(2, dim=3)], dim=1)
        self.images.append(images)
        self.logits.append(5 * self.head(halves))
        return self.logits[-1]


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Sum over 15 bins of (images / all) * |accuracy - confidence|."""
    confidence, hits = probabilities.max(1), probabilities.argmax(1) == labels
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
    return error


def test_measures_are_their_formulas(images_root: Path, tmp_path: Path) -> None:
    index, net = open_split(images_root, "val", tmp_path), Recorder()
    result = evaluate(Network(net, 3), index, loading(batch_size=4), VIEW)
    labels = index.labels.astype(np.int64)
    logits = torch.cat(net.logits)[: len(labels)]
    probabilities = logits.softmax(1).detach().numpy()
    chosen = probabilities.argmax(1)
    assert result.top1 == pytest.approx((chosen == labels).mean())
    assert result.top5 is None
    assert result.nll == pytest.approx(-np.log(probabilities[np.arange(len(labels)), labels]).mean(), rel=1e-5)
    assert result.calibration_error == pytest.approx(expected_calibration_error(probabilities, labels), rel=1e-5)
    assert result.images == np.bincount(labels, minlength=3).tolist()
    assert result.correct == [int(((chosen == labels) & (labels == label)).sum()) for label in range(3)]


@pytest.mark.parametrize(("top1", "limits"), [(0.0, "0.00 to 16.11"), (1.0, "83.89 to 100.00")])
def test_no_hits_and_only_hits_have_an_interval_with_a_width(top1: float, limits: str) -> None:
    """Limits: Newcombe, Statistics in Medicine 17, 1998, page 857, table I, method 3, for 0 of 20."""
    result = Result(top1, None, nll=2.0, calibration_error=0.1, correct=[0], images=[20], num_logits=1)
    row = tables(result, ["a"], "net", VIEW, by_class=False)[0].rows[0]
    assert row[2] == f"% of 20 images, 95 % interval {limits}"


def test_tta_averages_the_logits_of_image_and_mirror_image(images_root: Path, tmp_path: Path) -> None:
    index, net = open_split(images_root, "val", tmp_path), Recorder()
    result = evaluate(Network(net, 3), index, loading(batch_size=4), View(16, 0.875, tta=True))
    assert torch.equal(net.images[0].flip(-1), net.images[1])
    logits = torch.cat([(a + b) / 2 for a, b in zip(net.logits[::2], net.logits[1::2], strict=True)])[: len(index)]
    labels = torch.from_numpy(index.labels.astype(np.int64))
    assert result.nll == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_a_network_sees_its_own_normalisation(images_root: Path, tmp_path: Path) -> None:
    index, ours, theirs = open_split(images_root, "val", tmp_path), Recorder(), Recorder()
    evaluate(Network(ours, 3), index, loading(batch_size=4), VIEW)
    evaluate(Network(theirs, 3), index, loading(batch_size=4, mean=(0.5,) * 3, std=(0.25,) * 3), VIEW)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(theirs.images[0], (ours.images[0] * std + mean - 0.5) / 0.25)


def test_a_view_follows_the_configuration_or_a_convention() -> None:
    options = loading(val_image_size=200, val_crop_ratio=0.9, interpolation="area")
    assert view_of(options, None, tta=True) == View(200, 0.9, "area", True)
    assert view_of(loading(val_interpolation="bicubic"), None, tta=False).interpolation == "bicubic"
    assert view_of(options, "ffcv", tta=False) == View(256, 0.875, "area", True)
    assert view_of(options, "timm", tta=True) == View(224, 0.95, "bicubic", True)
    with pytest.raises(ConfigError, match="eval=tim is not known; did you mean timm"):
        view_of(loading(), "tim", tta=False)


def test_data_with_other_classes_and_an_unsuitable_size_are_refused(images_root: Path, tmp_path: Path) -> None:
    index = open_split(images_root, "val", tmp_path)
    with pytest.raises(CheckpointMismatch, match="1000 classes, the validation images have 3"):
        evaluate(Network(Recorder(), 1000), index, loading(), VIEW)
    net = timm.create_model("test_vit", num_classes=3, dynamic_img_size=False).eval()
    with pytest.raises(ConfigError, match=r"96 pixels \(data\.val_image_size, eval=\)"):
        evaluate(Network(net, 3), index, loading(batch_size=2), View(96, 0.875, tta=True))


def test_weights_are_in_the_memory_order_of_the_images_of_a_gpu() -> None:
    """ "meta" is a device without memory."""
    network = on_device(timm.create_model("resnet10t", num_classes=4), torch.device("meta"))
    weights = [each for each in network.parameters() if each.ndim == 4]
    assert weights and all(each.is_contiguous(memory_format=torch.channels_last) for each in weights)
