"""imagenet_opt.ops against torchvision's functions on each image."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from imagenet_opt import ops
from imagenet_opt.errors import BadSample, ConfigError
from tests.data.conftest import encoded, picture

STATISTICS = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BOXES = [(0, 0, 120, 200), (10, 30, 64, 48), (50, 7, 33, 190)]


def pixels(num: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (num, 3, height, width), dtype=torch.uint8, generator=seeded())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(40, 64), (96, 32), 50])
def test_from_jpegs_to_images_as_torchvision(size: int | tuple[int, int], interpolation: str) -> None:
    """Decode, crop, resize to any shape, flip and normalise: within a grey level of the functions on each image."""
    files, flips = [encoded(picture(120, 200, seed=i)) for i in range(3)], [False, True, True]
    crops = ops.ragged([ops.decode(file, box) for file, box in zip(files, BOXES, strict=True)], flips=flips)
    actual = ops.resize(crops, size, dtype=torch.uint8, interpolation=interpolation)
    normalised = ops.resize(crops, size, interpolation=interpolation)
    sides = [size, size] if isinstance(size, int) else list(size)
    for row, (file, box, flip) in enumerate(zip(files, BOXES, flips, strict=True)):
        image = F.crop(F.pil_to_tensor(Image.open(io.BytesIO(file))), *box).float()
        image = F.resize(image, sides, interpolation=v2.InterpolationMode(interpolation), antialias=True).clamp(0, 255)
        image = F.horizontal_flip(image) if flip else image
        assert (actual[row].float() - image).abs().max() <= 1
        expected = F.normalize(image / 255, *STATISTICS)
        assert (normalised[row] - expected).abs().max() <= 1.01 / 255 / 0.224
    assert actual.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ops.normalize(actual), F.normalize(actual / 255, *STATISTICS))


def test_each_image_gets_its_own_changes_which_the_generator_decides() -> None:
    same = pixels(1, 48, 80).expand(16, -1, -1, -1)
    jitter = ops.ColorJitter((0.4, 0.4, 0.4))
    for policy in (ops.RandAugment(magnitude=9, probability=1), ops.TrivialAugment(), jitter, ops.Shift(3, (9, 8, 7))):
        changed = ops.augment(same, policy, generator=seeded())
        assert len({image.numpy().tobytes() for image in changed}) > 8
        assert torch.equal(changed, ops.augment(same, policy, generator=seeded()))
        assert not torch.equal(changed, ops.augment(same, policy, generator=seeded(1)))


def test_policies_draw_orders_and_strengths_for_images_of_any_shape() -> None:
    """Colours change in a random order, as in torchvision; a translation is a share of its side."""
    draws = np.random.default_rng(0).random((500, 5))
    layers = ops.ColorJitter((0.4, 0.0, 1.5)).layers(draws[:12, :4], 20)
    limits = {ops.Operation.BRIGHTNESS: (0.6, 1.4), ops.Operation.CONTRAST: (1, 1), ops.Operation.COLOR: (0, 2.5)}
    for operation, factor in [pair for layer in layers for pair in zip(*layer[:2], strict=True)]:
        assert limits[operation][0] <= factor <= limits[operation][1]
    orders = {tuple(layer.operations[row] for layer in layers) for row in range(12)}
    assert len(orders) > 2 and all(len(set(order)) == 3 for order in orders)
    (layer,) = ops.RandAugment(num_layers=1, probability=1).layers(draws, (40, 100))
    for operation, most in ((ops.Operation.TRANSLATE_X, 45), (ops.Operation.TRANSLATE_Y, 18)):
        assert np.abs(layer.arguments[layer.operations == operation]) == pytest.approx(most)


def test_other_inputs_end_in_one_line() -> None:
    good, crop = pixels(2, 8, 9), np.zeros((4, 5, 3), np.uint8)
    image, crops = encoded(picture(120, 200)), ops.ragged([crop])
    layer = ops.Layer(ops.Operation.ROTATE, [1, 2], fill := (0, 0, 0))
    leaf = good.float().requires_grad_()
    calls = {
        "images are torch.float32": lambda: ops.augment(good.float(), "trivialaugment"),
        "policy=7": lambda: ops.augment(good, 7),
        "arguments=.*POSTERIZE: expected 0 to 8": lambda: ops.augment(
            good, ops.Layer(ops.Operation.POSTERIZE, 9, fill)
        ),
        r"arguments= must be numbers of shape \(2,\)": lambda: ops.augment(good, layer._replace(arguments=[1, 2, 3])),
        r"crops\[1\] is torch.uint8 \(3, 8, 9\)": lambda: ops.ragged([crop, good[0]]),
        r"crops\[0\] is float64": lambda: ops.ragged([crop.astype(float)]),
        "flips= must be": lambda: ops.ragged([crop, crop], flips=[True, False, True]),
        "windows=": lambda: ops.ragged([crop], windows=[[0, 0, np.inf, 1]]),
        "size=0": lambda: ops.resize(crops, 0),
        r"size=5\.5": lambda: ops.resize(crops, 5.5),
        "interpolation=nearest": lambda: ops.resize(crops, 8, interpolation="nearest"),
        "dtype=torch.int32": lambda: ops.resize(crops, 8, dtype=torch.int32),
        "crops is a Tensor": lambda: ops.resize(good, 8),
        "box=.*120 x 200": lambda: ops.decode(image, (0, 0, 121, 10)),
        r"box=\(1, 2, 3\)": lambda: ops.decode(image, (1, 2, 3)),
        r"box=\(0\.5,": lambda: ops.decode(image, (0.5, 0, 5, 5)),
        "policy=randm7": lambda: ops.augment(good, "randm7"),
        "generator=5": lambda: ops.augment(good, "trivialaugment", generator=5),
        "arguments=.*nan": lambda: ops.augment(good, layer._replace(arguments=[np.nan, 1])),
        "operations=": lambda: ops.augment(good, layer._replace(operations=16)),
        "fill=.*256": lambda: ops.augment(good, layer._replace(fill=(0, 0, 256))),
        "images are torch.int32": lambda: ops.normalize(good.int()),
        r"images are torch.float32 \(2, 1": lambda: ops.normalize(good[:, :1].float()),
        "images is a str": lambda: ops.normalize("x"),
        "dtype=torch.uint8": lambda: ops.normalize(good, dtype=torch.uint8),
        "mean=.*3 numbers": lambda: ops.normalize(good, mean=(1, 2)),
        "std=": lambda: ops.normalize(good, std=(0, 0, 0)),
        "probability=2": lambda: ops.erase(good, 2),
        r"images are torch.float32 \(3, 8, 9\)": lambda: ops.erase(good[0].float(), 0.5),
        "images require gradients": lambda: ops.erase(leaf, 0.5),
        "encoded is a str": lambda: ops.decode("image.jpg"),
    }
    for message, call in calls.items():
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(BadSample, match=r"cannot decode cat\.jpg"):
        ops.decode(b"\xff\xd8 no image", name="cat.jpg")
    assert ops.decode(image, lambda height, width: (0, 0, height, width // 4)).shape == (120, 50, 3)
    assert ops.augment(good[:0], "trivialaugment").shape == (0, 3, 8, 9)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_a_compiled_function_normalises_without_a_graph_break() -> None:
    images = pixels(2, 8, 9)
    compiled = torch.compile(lambda images: ops.normalize(images) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), ops.normalize(images) * 2)
