"""Small data sets and configurations that many tests share."""

import gc
import logging
import os
import signal
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning.pytorch import Trainer
from omegaconf import DictConfig
from PIL import Image

from imagenet_opt.config import compose as composition
from imagenet_opt.config import experiment_file
from imagenet_opt.config import overrides as config_overrides
from imagenet_opt.config.compose import leave_out_idle
from imagenet_opt.config.overrides import config_folder, key_of
from imagenet_opt.data.options import LoaderOptions
from tests.faulty_proxy import proxy  # noqa: F401 (fixture)
from tests.hub_server import hub  # noqa: F401 (fixture)
from tests.object_server import bucket, object_server  # noqa: F401 (fixtures)

torch.set_num_threads(1)
os.environ.pop("CI", None)  # in a job of a CI service commands draw no bars
os.environ.pop("COLUMNS", None)  # tables of tests have the usual widths
os.environ["OMP_NUM_THREADS"] = "1"  # processes of tests share the CPUs with other tests
torch.ones((), requires_grad=True).backward()  # after a compiled first backward pass, forked processes could have none
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells make background processes ignore
gc.freeze()  # without it each full collection visits a million objects of imported modules


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def log_lines_reach_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)  # Lightning 2.6.0 turns it off


def write_images(root: Path, *, num_classes: int, per_class: int, seed: int = 0) -> Path:
    """A folder-per-class data set of small JPEGs whose brightness tells the class: train/ and val/."""
    rng = np.random.default_rng(seed)
    for split in ("train", "val"):
        for label in range(num_classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(per_class):
                height, width = rng.integers(24, 60, size=2)
                level = 255 * (label + 0.5) / num_classes
                pixels = rng.normal(level, 20, size=(height, width, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"image{i:03d}.JPEG", quality=90)
    return root


def stating(jpeg: bytes, *, height: int | None = None, width: int | None = None) -> bytes:
    """A JPEG whose header states another size."""
    data, frame = bytearray(jpeg), next(i for i in range(len(jpeg)) if jpeg[i : i + 2] in (b"\xff\xc0", b"\xff\xc2"))
    for side, start in ((height, frame + 5), (width, frame + 7)):
        data[start : start + 2] = data[start : start + 2] if side is None else side.to_bytes(2, "big")
    return bytes(data)


def loading_options(**options: Any) -> dict[str, Any]:
    """`options`, and defaults for small images in batches of six without workers."""
    return {"batch_size": 6, "image_size": 32, "num_workers": 0, "prefetch_factor": 2, "seed": 3} | options


def loading(**options: Any) -> LoaderOptions:
    return LoaderOptions(**loading_options(**options))


def quiet_trainer(**options: Any) -> Trainer:
    """A Trainer on the CPU that writes and shows nothing, unless `options` change this."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(**{"accelerator": "cpu"} | quiet | options)


composition.register_resolvers()  # conf/ is composed without the checks in most tests


def whole(*overrides: str) -> DictConfig:
    """The configuration of train.py with the optional callbacks that are off."""
    groups = tuple(word for word in overrides if (config_folder() / key_of(word)).is_dir() or "hydra" in word)
    values = OverridesParser.create().parse_overrides([word for word in overrides if word not in groups])
    config = deepcopy(_of_groups(groups))
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


@cache
def _of_groups(groups: tuple[str, ...]) -> DictConfig:
    """Hydra needs a third of a second for it."""
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train", list(groups))


def composed(*overrides: str) -> DictConfig:
    config = whole(*overrides)
    leave_out_idle(config, list(overrides))
    return config


@pytest.fixture(scope="session")
def images_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, 13 images each, in train/ and val/."""
    return write_images(tmp_path_factory.mktemp("images"), num_classes=3, per_class=13)


def hold_images(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a convolution of more than `num` images run out of memory, as on a small device."""
    forward = torch.nn.Conv2d.forward

    def small(layer: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
        if len(images) > num:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(layer, images)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", small)


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ with a writable folder of experiments, without results of tune, doctor and study."""
    conf = tmp_path / "conf"
    conf.mkdir()
    for entry in config_folder().iterdir():
        (conf / entry.name).symlink_to(entry) if entry.name != "experiment" else (conf / entry.name).mkdir()
    for file in (config_folder() / "experiment").glob("*.yaml"):
        if not file.name.startswith("tuned_"):
            (conf / "experiment" / file.name).write_text(file.read_text())
    for module in (config_overrides, composition, experiment_file):  # which imported the function by name
        monkeypatch.setattr(module, "config_folder", lambda: conf)
    return conf


@pytest.fixture
def compile_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
