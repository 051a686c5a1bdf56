"""A run with all default callbacks that is preempted between any two batches and resumed ends like an undisturbed
run."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.ema import Ema
from imagenet_opt.callbacks.gpu_utilization import GpuUtilization
from imagenet_opt.callbacks.host_utilization import HostUtilization
from imagenet_opt.callbacks.learning_rate import LearningRate
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.callbacks.progress_bar import ProgressBar
from imagenet_opt.callbacks.throughput import Throughput
from imagenet_opt.callbacks.timeline import Timeline
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.errors import Preempted
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.schedule import cosine
from imagenet_opt.run.checkpoint import files as files
from imagenet_opt.run.loggers.metrics_csv import MetricsCsv
from tests.callbacks.conftest import AtCall, WatchKeys
from tests.conftest import loading, quiet_trainer
from tests.model.conftest import OPTIMIZER
from tests.test_train import metrics

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
]


class Preempt(AtCall):
    def __init__(self, hook: str, call: int) -> None:
        super().__init__(hook, call, self.stop)

    def stop(self) -> None:
        raise Preempted("stop requested")


class PreemptWaiting(Preempt, WatchKeys):
    """Raises inside `next(loader)`."""

    def __init__(self, call: int) -> None:
        super().__init__("watch", call)


class Noise(Callback):
    """Draws from the random state of the run while it validates."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.rand(1)


def network() -> nn.Module:
    torch.manual_seed(1)
    parts = nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*parts, nn.Dropout(0.3), nn.Linear(16, 3))


def default_callbacks(folder: Path) -> list[Callback]:
    """Those of conf/train.yaml; mixing takes another kind of batch."""
    recorders = Throughput(), Bottleneck(), Timeline(folder=folder), GpuUtilization(), HostUtilization()
    return [Acceleration(), *recorders, LearningRate(), ProgressBar(), Checkpoint(folder=str(folder)), Preemption()]


def fit(folder: Path, root: Path, *callbacks: Callback, ema: bool, resume: bool = False, **options: Any) -> None:
    """Two epochs of six batches, into `folder`."""
    data = ImageData(open_split(root, "train", folder), open_split(root, "val", folder), loading(image_size=16))
    module = Classifier(network(), optimizer=OPTIMIZER, schedule=partial(cosine, warmup_epochs=0))
    found = files.find("auto" if resume else None, folder)
    logger = MetricsCsv(folder=str(folder))
    logger.truncate_after(files.read(found)["global_step"] - 1 if found else -1)
    averaging = [Ema(decay=0.5)] if ema else []
    settings: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 2, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(
        logger=logger,
        enable_checkpointing=True,
        enable_progress_bar=True,
        callbacks=[*default_callbacks(folder), Noise(), *averaging, *callbacks],
        use_distributed_sampler=False,
        deterministic=True,
        **settings | options,
    )
    torch.manual_seed(2)
    trainer.fit(module, datamodule=data, ckpt_path=found, weights_only=True)


def leaves(tree: Any, place: str = "") -> dict[str, Any]:
    """What a checkpoint holds, by place; it may hold nothing but dicts, lists, tuples, tensors and plain values."""
    if type(tree) in (dict, list, tuple):
        parts = tree.items() if type(tree) is dict else enumerate(tree)
        return {k: v for key, part in parts for k, v in leaves(part, f"{place}/{key}").items()} | {place: type(tree)}
    assert type(tree) in (int, float, str, bool, type(None), torch.Tensor), (place, type(tree))
    return {place: tree}


def assert_same_run(first: Path, second: Path) -> None:
    """Every number of the last and the best checkpoint, to the last bit, and every row of metrics."""
    for name in (files.LAST, files.BEST):
        ours, theirs = leaves(files.load(first / name)), leaves(files.load(second / name))
        assert ours.keys() == theirs.keys()
        for place, found in ours.items():
            same = torch.equal(found, theirs[place]) if isinstance(found, torch.Tensor) else found == theirs[place]
            assert same, (name, place, found, theirs[place])
    assert metrics(first) == metrics(second)


@pytest.fixture(scope="module")
def clean(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, Any], Path]:
    """Folders of uninterrupted runs, by whether weights are averaged and how often is validated."""
    folders = {place: tmp_path_factory.mktemp("clean") for place in product((False, True), (1.0, 3))}
    for (ema, interval), folder in folders.items():
        fit(folder, images_root, ema=ema, val_check_interval=interval)
    return folders


HOOKS = [
    ("on_train_batch_start", 4, 1.0, 3),
    ("next", 5, 1.0, 4),
    ("on_train_batch_start", 7, 1.0, 6),
    ("on_validation_start", 1, 1.0, 6),
    ("on_validation_epoch_start", 2, 1.0, 12),
    ("on_validation_batch_start", 3, 1.0, 6),
    ("on_validation_batch_end", 9, 1.0, 12),
    ("on_validation_epoch_end", 1, 1.0, 6),
    ("on_validation_batch_start", 3, 3, 3),
    ("on_validation_epoch_end", 2, 3, 6),
    ("on_train_epoch_end", 1, 1.0, 6),
    ("on_train_epoch_start", 2, 1.0, 6),
    ("on_train_end", 1, 1.0, 12),
]
"""Hook, its call that is preempted, interval of validations, step of the checkpoint."""
WITHOUT_AVERAGING = [HOOKS[0], HOOKS[1], HOOKS[5], HOOKS[8]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ema", "place"), [*((True, place) for place in HOOKS), *((False, place) for place in WITHOUT_AVERAGING)]
)
def test_a_preempted_run_ends_as_the_undisturbed_run(
    clean: dict[tuple[bool, Any], Path], images_root: Path, tmp_path: Path, ema: bool, place: tuple[str, int, Any, int]
) -> None:
    hook, call, interval, saved = place
    stop = PreemptWaiting(call) if hook == "next" else Preempt(hook, call)
    with pytest.raises(Preempted):
        fit(tmp_path, images_root, stop, ema=ema, val_check_interval=interval)
    assert files.read(tmp_path / files.LAST)["global_step"] == saved
    fit(tmp_path, images_root, ema=ema, val_check_interval=interval, resume=True)
    assert_same_run(clean[ema, interval], tmp_path)


def test_a_run_without_steps_left_repeats_its_last_validation(images_root: Path, tmp_path: Path) -> None:
    fit(tmp_path / "clean", images_root, ema=True, max_steps=12)
    with pytest.raises(Preempted):
        fit(tmp_path / "cut", images_root, Preempt("on_validation_batch_start", 10), ema=True, max_steps=12)
    fit(tmp_path / "cut", images_root, ema=True, max_steps=12, resume=True)
    assert_same_run(tmp_path / "clean", tmp_path / "cut")


def test_preempted_again_and_again(clean: dict[tuple[bool, Any], Path], images_root: Path, tmp_path: Path) -> None:
    """Before the first step, in a validation, in that validation again, after it, and before the last step."""
    stops = (
        Preempt("on_train_batch_start", 1),
        Preempt("on_validation_batch_start", 2),
        Preempt("on_validation_epoch_end", 1),
        Preempt("on_train_epoch_end", 1),
        PreemptWaiting(6),
    )
    for i, stop in enumerate(stops):
        with pytest.raises(Preempted):
            fit(tmp_path, images_root, stop, ema=True, resume=i > 0)
        assert (tmp_path / files.LAST).exists() == (i > 0)
    fit(tmp_path, images_root, ema=True, resume=True)
    assert_same_run(clean[True, 1.0], tmp_path)


def test_a_run_preempted_inside_a_step_resumes_from_the_previous_checkpoint(
    clean: dict[tuple[bool, Any], Path], images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Preempted):
        fit(tmp_path, images_root, Preempt("on_before_optimizer_step", 9), ema=False)
    assert "step 8 is not saved" in caplog.text
    assert "resumes from step 6" in caplog.text
    fit(tmp_path, images_root, ema=False, resume=True)
    assert_same_run(clean[False, 1.0], tmp_path)


def test_another_error_leaves_the_save_that_is_being_written_whole(images_root: Path, tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 1:
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(tmp_path, images_root, Fail(), ema=False)
    assert files.read(tmp_path / files.LAST)["global_step"] == 6
    assert not list(tmp_path.glob("**/*.new"))
